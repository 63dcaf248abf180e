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
    ``expert_efficiency`` (share of peak FLOPs and of link bandwidth that routed rows reach),
    ``skew_exponent`` (expert popularity), ``colocated_moe_us`` (launch and synchronisation of the
    unfused MoE layer), ``dense_us`` (small kernels per layer and lane, by model).
    Stated: everything else; ``configs/calibration/`` gives the reasons.
    """

    attention_efficiency: float
    expert_efficiency: float
    skew_exponent: float
    colocated_moe_us: float
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
        return statistics.median(self.dense_us.values()), "median of the calibrated models"


FITTED = ("attention_efficiency", "expert_efficiency", "skew_exponent", "colocated_moe_us")


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
