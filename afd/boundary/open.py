"""The one place that knows which boundary a launch uses."""

from __future__ import annotations

from afd import _megamoe as ops
from afd._megamoe import AttentionSide, Domain, FfnSide, Layout, Pool, ScaleFormat, Wire
from afd.boundary.colocated import ColocatedPort
from afd.boundary.experts import load_experts, make_experts
from afd.boundary.megamoe import MegamoeFfnPort
from afd.boundary.ownership import balanced_owners, owned_by
from afd.boundary.ports import AttentionPort
from afd.checkpoint import Checkpoint
from afd.config import BoundaryConfig, ReturnMode, Topology, WireScales, WireType, WorkerConfig
from afd.models.config import ModelConfig
from afd.models.family import Family

_WIRES = {WireType.FP8: Wire.FP8, WireType.BF16: Wire.BF16, WireType.FP32: Wire.FP32}
_SCALES = {
    WireScales.FP32_128: ScaleFormat.FP32_PER_128,
    WireScales.UE8M0_128: ScaleFormat.UE8M0_PER_128,
    WireScales.UE8M0_32: ScaleFormat.UE8M0_PER_32,
}
_RETURNS = {
    ReturnMode.SLOT: ops.ReturnMode.SLOT,
    ReturnMode.REDUCED: ops.ReturnMode.REDUCED,
}


def boundary_layout(model: ModelConfig, boundary: BoundaryConfig, topology: Topology) -> Layout:
    """The symmetric memory of a launch; both sides build the same from the same shapes."""
    return Layout(
        attention_ranks=topology.attention_ranks,
        ffn_ranks=topology.ffn_ranks,
        lanes=boundary.num_lanes,
        max_tokens=boundary.max_lane_tokens,
        hidden=model.hidden,
        top_k=model.top_k,
        experts=model.experts,
        moe_layers=len(model.moe_layers),
        wire=_WIRES[boundary.wire],
        scale_format=_SCALES[boundary.wire_scales],
        return_mode=_RETURNS[boundary.return_mode],
    )


def _domain(config: WorkerConfig) -> Domain:
    return Domain(config.memory_fd, boundary_layout(config.model, config.boundary, config.topology))


def open_attention_port(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint, pool: Pool
) -> AttentionPort:
    """The attention side's port; colocated ranks load every expert here."""
    if config.topology.ffn_ranks:
        owners = balanced_owners(config.model.experts, config.topology.ffn_ranks)
        return AttentionSide(_domain(config), config.rank, config.boundary.deadline_ms, owners)
    owned = list(range(config.model.experts))
    experts = make_experts(config, family, checkpoint, owned)
    load_experts(experts, config, family, checkpoint, owned)
    return ColocatedPort(experts, pool)


def open_ffn_port(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint, pool: Pool
) -> MegamoeFfnPort:
    """The FFN side's port, its own experts loaded and no other tensor opened."""
    ffn_rank = config.rank - config.topology.attention_ranks
    owners = balanced_owners(config.model.experts, config.topology.ffn_ranks)
    owned = owned_by(owners, ffn_rank)
    experts = make_experts(config, family, checkpoint, owned)
    domain = _domain(config)
    side = FfnSide(domain, ffn_rank, owners, experts, pool, config.boundary.deadline_ms)
    load_experts(experts, config, family, checkpoint, owned)
    return MegamoeFfnPort(side, experts.nbytes)
