"""The few physical parameters fitted to measurements, and the constants that are stated."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from afd.plan.data import load, take


@dataclass(frozen=True)
class Calibration:
    """Parameters of the kernel model; none belongs to a row.

    Fitted: ``attention_efficiency`` (share of memory bandwidth the sweep reaches),
    ``expert_efficiency`` (share of peak FLOPs and of link bandwidth that routed rows reach; of link
    bandwidth alone where expert GEMMs come from tables), ``skew_exponent`` (expert popularity; not
    fitted with tables, which state theirs), ``colocated_moe_us`` and ``ep_doubling_us`` (launch and
    synchronisation of one staged exchange at EP4, and more per doubling),
    ``processor_bandwidth_share`` (of a short last wave), ``ffn_start_us`` (the persistent kernel's
    start of a layer and lane), ``dense_us`` (small kernels per layer and lane, by model).
    Stated: everything else; ``configs/calibration/`` gives the reasons.
    """

    attention_efficiency: float
    expert_efficiency: float
    skew_exponent: float
    colocated_moe_us: float
    ep_doubling_us: float
    slot_us: float
    dense_us: Mapping[str, float]
    attention_start_us: float
    weight_read_efficiency: float
    processor_bandwidth_share: float
    dense_gemm_efficiency: float
    dense_passes: float
    dispatch_round_tokens: int
    ffn_start_us: float
    sampling_passes: float
    source: str

    def dense_us_of(self, model_name: str) -> tuple[float, str]:
        """(µs per layer and lane, where it comes from); unknown models take the median."""
        key = model_key(model_name)
        if key in self.dense_us:
            return self.dense_us[key], f"calibrated for {key}"
        if not self.dense_us:
            return 0.0, "none"
        return statistics.median(self.dense_us.values()), "median of the calibrated models"


FITTED = (
    "attention_efficiency", "expert_efficiency", "skew_exponent", "colocated_moe_us",
    "ep_doubling_us", "processor_bandwidth_share", "ffn_start_us",
)  # fmt: skip


def model_key(model_name: str) -> str:
    """Weight-format suffixes do not change the small kernels' time."""
    name = model_name.rsplit("/", 1)[-1].lower()
    for suffix in ("-fp8", "-nvfp4"):
        name = name.removesuffix(suffix)
    return name


def load_calibration(source: str = "roofline") -> Calibration:
    """The shipped calibration for a kernel source (``roofline`` or ``tables``)."""
    table = load("calibration", "calibration", source)
    values = {k: take(table, k, f"calibration {source}") for k in Calibration.__dataclass_fields__}
    return Calibration(**values)
