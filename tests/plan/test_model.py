"""The model's pure functions: properties and published numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from afd.plan.bench import make_bench
from afd.plan.cuts import Cut
from afd.plan.data import names
from afd.plan.errors import DoesNotFitError, PlanError, UnknownNameError
from afd.plan.layouts import Bench, Workload, colocated, disaggregated
from afd.plan.memory import attention_batch, batch_expansion, colocated_batch, require_ffn_fits
from afd.plan.model_spec import load_model
from afd.plan.pipeline import (
    conditions,
    exposed_us,
    lane_period_us,
    speedup,
    step_us,
    tokens_per_s_per_gpu,
)
from afd.plan.profiles import load_hardware
from afd.plan.skew import busiest_rank_factor, measured_rank_factor, slowest_rank_factor
from afd.plan.times.kernels import held_processors_us, last_wave_factor

QWEN, MINIMAX = "qwen3-235b-a22b", "minimax-m2.5"
TIMES = st.floats(1.0, 1e4)


def bench(model: str = QWEN, context: float = 8192, **workload: float) -> Bench:
    return make_bench(load_model(model), load_hardware("gb200"), Workload(context, **workload))


def pipeline_by_events(ta: float, te: float, tc: float, lanes: int, layers: int) -> float:
    """An independent discrete-event run: two servers, jobs in (layer, lane) order."""
    attention_free = ffn_free = 0.0
    ready = [0.0] * lanes
    for _ in range(layers):
        for lane in range(lanes):
            attention_free = max(attention_free, ready[lane]) + ta
            ffn_free = max(ffn_free, attention_free + tc) + te
            ready[lane] = ffn_free + tc
    return max(ready)


@given(ta=TIMES, te=TIMES, tc=st.floats(0, 1e4), lanes=st.integers(1, 4))
def test_the_closed_form_step_agrees_with_a_discrete_event_run(
    ta: float, te: float, tc: float, lanes: int
) -> None:
    layers = 40
    exact = pipeline_by_events(ta, te, tc, lanes, layers)
    closed = step_us(ta, te, tc, lanes, layers)
    # They may differ by what fills and drains the pipeline, never by a share of the steady part.
    assert abs(closed - exact) <= 2 * lanes * (ta + te + 2 * tc)


@given(ta=TIMES, te=TIMES, tc=st.floats(0.01, 1e4))
def test_two_lanes_hide_exactly_when_the_round_trip_fits_the_other_lane(
    ta: float, te: float, tc: float
) -> None:
    excess = te + 2 * tc - ta
    assume(abs(excess) > 1e-8 * ta)  # nearer than that lies the next test
    hidden = excess < 0
    assert (exposed_us(ta, te, tc, 2) <= 1e-9 * ta) == hidden
    assert conditions(ta, te, tc, 2).fully_hidden == hidden
    # Condition (3) as published can never hold with two lanes and a real transfer time.
    assert not conditions(ta, te, tc, 2).enough_lanes
    assert lane_period_us(ta, te, tc, 1) == pytest.approx(ta + te + 2 * tc)


@given(te=st.integers(100, 10**5), tc=st.integers(1, 10**5))
def test_a_round_trip_that_fits_to_the_last_digit_is_hidden(te: int, tc: int) -> None:
    ta = te + 2 * tc
    for unit in (100, 1000, 30):
        assert conditions(ta / unit, te / unit, tc / unit, 2).fully_hidden
        assert not conditions(ta / unit, te / unit, (tc + 0.01) / unit, 2).fully_hidden


def test_an_equal_round_trip_is_hidden_though_its_floats_sum_to_more() -> None:
    assert 21 + 19.12 + 2 * 0.94 > 2 * 21
    assert conditions(21, 19.12, 0.94, 2).fully_hidden


@given(
    b0=st.integers(1, 500), b1=st.integers(1, 500), m=st.integers(1, 17), n=st.integers(1, 4),
    t0=st.floats(1, 100), t1=st.floats(1, 100),
)  # fmt: skip
def test_the_identity_is_the_ratio_of_throughputs(
    b0: int, b1: int, m: int, n: int, t0: float, t1: float
) -> None:
    ratio = tokens_per_s_per_gpu(b1, t1, m, n) / tokens_per_s_per_gpu(b0, t0)
    assert speedup(b1 / b0, m, n, t0, t1) == pytest.approx(ratio)


def test_kv_bytes_and_parameter_counts_are_the_published_ones() -> None:
    qwen = load_model(QWEN)
    assert qwen.kv_bytes_per_request(1, 2.0) == 192_512
    assert load_model(MINIMAX).kv_bytes_per_request(1, 2.0) == 253_952
    assert qwen.total_bytes / 1e9 == pytest.approx(236, rel=0.01)
    assert load_model("deepseek-v3").total_bytes / 1e9 == pytest.approx(671, rel=0.03)
    assert load_model("deepseek-v3").kv_bytes_per_request(1, 2.0) == 61 * 576 * 2
    assert load_model("gpt-oss-120b").total_bytes / 1e9 == pytest.approx(64, rel=0.08)
    assert load_model("mixtral-8x7b").total_bytes / 1e9 == pytest.approx(93.4, rel=0.02)


@pytest.mark.parametrize("name", names("models"))
def test_every_shipped_model_can_be_estimated(name: str) -> None:
    b = bench(name)
    got = disaggregated(b, 3, 1, 8)
    assert got.step_ms > 0 and math.isfinite(got.tokens_per_s_per_gpu)
    assert colocated(b, 4, 8).step_ms > 0


@pytest.mark.parametrize("name", names("hardware"))
def test_every_shipped_hardware_loads(name: str) -> None:
    assert load_hardware(name).memory_bytes_per_s > 0


def test_this_cpu_is_measured() -> None:
    assert load_hardware("cpu").fp8_flops_per_s > 1e8


def test_resident_batches_are_the_published_ones() -> None:
    chip = load_hardware("gb200")
    for model, context, published in (
        (QWEN, 8192, 96), (QWEN, 16384, 48), (MINIMAX, 8192, 72), (MINIMAX, 16384, 36),
    ):  # fmt: skip
        got = attention_batch(load_model(model), chip, Cut.ROUTED_TOKENS, context, 2.0)
        assert got == published
    for ep, published in ((8, 88), (16, 96), (32, 101), (64, 103)):
        got = colocated_batch(load_model(QWEN), chip, ep, 8192, 2.0)
        assert got == pytest.approx(published, rel=0.02)
    assert batch_expansion(load_model(QWEN), chip, 8192, 2.0) == pytest.approx(1.5, rel=0.05)
    rubin = batch_expansion(load_model(QWEN), load_hardware("rubin"), 8192, 2.0)
    assert rubin == pytest.approx(1.25, rel=0.05)


@given(st.integers(1, 400))
def test_a_larger_batch_never_makes_a_step_shorter(batch: int) -> None:
    b = bench()
    assert colocated(b, 16, batch + 1).step_ms >= colocated(b, 16, batch).step_ms - 0.35
    if batch > 1:
        low, high = disaggregated(b, 7, 1, batch), disaggregated(b, 7, 1, batch + 8)
        assert high.step_ms >= low.step_ms * 0.97  # a short last wave may fill up


@given(m=st.integers(1, 16))
def test_more_attention_nodes_never_shorten_the_step(m: int) -> None:
    b = bench()
    assert disaggregated(b, m + 1, 1, 96).step_ms >= disaggregated(b, m, 1, 96).step_ms


def test_experts_that_do_not_fit_say_by_how_much() -> None:
    model, chip = load_model("kimi-k2"), load_hardware("h100")
    with pytest.raises(DoesNotFitError, match=r"\d+\.\d GB too little"):
        require_ffn_fits(model, chip, Cut.ROUTED_TOKENS, 8)
    with pytest.raises(DoesNotFitError, match="one request"):
        attention_batch(model, load_hardware("lpx"), Cut.ROUTED_TOKENS, 8192, 2.0)


@given(st.floats(0, 3), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]))
def test_the_busiest_rank_carries_between_the_mean_and_every_token(
    exponent: float, ranks: int
) -> None:
    factor = busiest_rank_factor(128, 8, ranks, exponent)
    assert 1.0 <= factor <= 128 / 8 + 1e-9
    assert factor >= busiest_rank_factor(128, 8, max(1, ranks // 2), exponent) - 1e-9
    assert busiest_rank_factor(128, 8, ranks, 0.0) == pytest.approx(1.0)


def test_measured_counts_and_uneven_contexts_change_the_estimate() -> None:
    counts = [1.0] * 127 + [40.0]
    assert measured_rank_factor(counts, 4) == pytest.approx((31 + 40) * 4 / 167)
    # 128 experts on 3 ranks: 43, 43 and 42.
    assert measured_rank_factor(counts, 3) == pytest.approx((41 + 40) * 3 / 167)
    assert measured_rank_factor([1.0] * 8, 16) == pytest.approx(2.0)
    assert slowest_rank_factor(28, 96, 0.0) == 1.0
    even, uneven = bench(), bench(context_cv=1.0)
    assert disaggregated(uneven, 7, 1, 96).step_ms > 1.1 * disaggregated(even, 7, 1, 96).step_ms
    skewed = bench(skew_exponent=2.0)
    flat = bench(skew_exponent=0.0)
    assert disaggregated(skewed, 9, 1, 96).step_ms > disaggregated(flat, 9, 1, 96).step_ms


def test_a_short_last_wave_costs_and_full_waves_do_not() -> None:
    assert last_wave_factor(100, 148, 2.2) == 1.0
    assert last_wave_factor(296, 148, 2.2) == pytest.approx(1.0)
    assert last_wave_factor(192, 148, 2.2) == pytest.approx((1 + 1 / 2.2) * 148 / 192)


@given(
    attention=st.floats(1, 1e3), held=st.floats(0, 2e3), share=st.floats(0.05, 0.6),
    bandwidth=st.floats(1.0, 4.0),
)  # fmt: skip
def test_held_processors_delay_attention_as_a_two_phase_run_does(
    attention: float, held: float, share: float, bandwidth: float
) -> None:
    """Independent: integrate both groups' bytes, each with its part of the bandwidth."""
    rest, late = 1 - share, share
    free_us = min(held, rest * attention)
    rest -= free_us / attention
    both_us = rest / (1 - share) * attention
    late -= both_us / attention * share
    total = free_us + both_us + late * attention / min(1.0, share * bandwidth)
    got = held_processors_us(attention, held, share, bandwidth)
    assert got == pytest.approx(total - attention, abs=1e-6 * attention)


def test_the_query_first_cut_overlaps_within_one_lane() -> None:
    b = bench()
    one = {cut: disaggregated(b, 6, 1, 96, 1, cut) for cut in Cut}
    assert one[Cut.QUERY_FIRST].step_ms < 0.8 * one[Cut.ROUTED_TOKENS].step_ms
    assert one[Cut.SWEEP_ONLY].terms_us["T_dense"] == 0.0
    assert one[Cut.SWEEP_ONLY].terms_us["T_e"] > one[Cut.ROUTED_TOKENS].terms_us["T_e"]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="minimax-m2.5"):
        load_model("gpt-7")
    with pytest.raises(UnknownNameError, match="gb300"):
        load_hardware("a100")


def test_a_checkpoints_config_is_read(tmp_path: Path) -> None:
    config = {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "num_experts": 16, "num_experts_per_tok": 8,
        "moe_intermediate_size": 192, "vocab_size": 49152, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = load_model(str(tmp_path))
    assert (spec.head_dim, spec.experts, spec.expert_bytes) == (64, 16, 3 * 576 * 192 * 2.0)
    del config["num_experts"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlanError, match="no routed experts"):
        load_model(str(tmp_path))
