"""The microbatch pipeline and the speed-up identity, after MegaScale-Infer and FastAFD."""

from __future__ import annotations

from dataclasses import dataclass

# Of T_a: sums of times that are equal in decimals differ by less once rounded.
_ROUNDING = 1e-9


def step_us(ta_us: float, te_us: float, tc_us: float, lanes: int, layers: int) -> float:
    """T_step = (T_a + T_e + 2 T_c) + T_f (m L − 1), T_f the period of one lane and layer."""
    period = lane_period_us(ta_us, te_us, tc_us, lanes)
    return (ta_us + te_us + 2 * tc_us) + period * (lanes * layers - 1)


def lane_period_us(ta_us: float, te_us: float, tc_us: float, lanes: int) -> float:
    """Steady time per lane and layer: max(T_a, T_e, round trip / m).

    A lane cannot start its next layer before its own round trip T_a + T_e + 2 T_c is over, and m
    lanes share that wait. With m = 1 everything is exposed; with m = 2 hiding needs
    T_e + 2 T_c ≤ T_a, which is stricter than T_c < T_f.
    """
    return max(ta_us, te_us, (ta_us + te_us + 2 * tc_us) / lanes)


def exposed_us(ta_us: float, te_us: float, tc_us: float, lanes: int) -> float:
    """What the attention side waits per lane and layer; zero means fully hidden."""
    return lane_period_us(ta_us, te_us, tc_us, lanes) - ta_us


@dataclass(frozen=True)
class Conditions:
    """The model's three conditions, and the one that replaces the first."""

    balanced: bool
    transfer_shorter: bool
    enough_lanes: bool
    hidden_ffn: bool
    fully_hidden: bool


def conditions(ta_us: float, te_us: float, tc_us: float, lanes: int) -> Conditions:
    """(1) T_a ≈ T_e within 10 %, (2) T_c < T_f, (3) m T_f ≥ 2 (T_f + T_c); hidden: T_e ≤ T_a.

    Condition (3) with m = 2 reads T_c ≤ 0, so no real fabric meets it; ``fully_hidden`` is the
    bound that does decide: m T_a ≥ T_a + T_e + 2 T_c. An excess over T_a that rounding explains is
    none.
    """
    tf = max(ta_us, te_us)
    hidden_us = ta_us * (1 + _ROUNDING)
    return Conditions(
        balanced=abs(ta_us - te_us) <= 0.1 * tf,
        transfer_shorter=tc_us < tf,
        enough_lanes=lanes * tf >= 2 * (tf + tc_us),
        hidden_ffn=te_us <= hidden_us,
        fully_hidden=lane_period_us(ta_us, te_us, tc_us, lanes) <= hidden_us,
    )


def ffn_tax(attention_nodes: int, ffn_nodes: int) -> float:
    """Share of the GPUs that host no request: N / (M + N)."""
    return ffn_nodes / (attention_nodes + ffn_nodes)


def tokens_per_s_per_gpu(
    batch: float, step_ms: float, attention_nodes: int = 1, ffn_nodes: int = 0
) -> float:
    """B / T × M / (M + N)."""
    return batch / (step_ms * 1e-3) * (1 - ffn_tax(attention_nodes, ffn_nodes))


def speedup(
    batch_expansion: float, attention_nodes: int, ffn_nodes: int, base_ms: float, afd_ms: float
) -> float:
    """The identity: batch expansion × M / (M + N) × latency ratio."""
    return batch_expansion * (1 - ffn_tax(attention_nodes, ffn_nodes)) * base_ms / afd_ms


def predicted_afd_ms(fmha_ms: float, dense_ms: float, batch_expansion: float, lanes: int) -> float:
    """T_AFD from a colocated decomposition while the FFN side is hidden: b T_FMHA + m T_dense."""
    return batch_expansion * fmha_ms + lanes * dense_ms
