"""The one place that knows which boundary a launch uses."""

from __future__ import annotations

from afd import _megamoe as ops
from afd._megamoe import AttentionSide, Domain, Experts, FfnSide, Layout, Pool, WeightType, Wire
from afd.boundary.colocated import ColocatedPort
from afd.boundary.megamoe import MegamoeFfnPort
from afd.boundary.ownership import balanced_owners, owned_by
from afd.boundary.ports import AttentionPort
from afd.checkpoint import Checkpoint
from afd.config import BoundaryConfig, Dtype, ReturnMode, Topology, WireType, WorkerConfig
from afd.models.config import ModelConfig
from afd.models.family import Family

_WIRES = {WireType.FP8: Wire.FP8, WireType.BF16: Wire.BF16, WireType.FP32: Wire.FP32}
_RETURNS = {
    ReturnMode.SLOT: ops.ReturnMode.SLOT,
    ReturnMode.REDUCED: ops.ReturnMode.REDUCED,
}
_WEIGHTS = {Dtype.BFLOAT16: WeightType.BF16, Dtype.FLOAT32: WeightType.FP32}


def weight_type(dtype: Dtype) -> WeightType:
    """The extension's name of a storage type."""
    return _WEIGHTS[dtype]


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
        return_mode=_RETURNS[boundary.return_mode],
    )


def _domain(config: WorkerConfig) -> Domain:
    return Domain(config.memory_fd, boundary_layout(config.model, config.boundary, config.topology))


def _load(
    port: ColocatedPort | MegamoeFfnPort,
    model: ModelConfig,
    family: Family,
    checkpoint: Checkpoint,
    owned: list[int],
) -> None:
    shape, down_shape = (model.expert_width, model.hidden), (model.hidden, model.expert_width)
    for index, layer in enumerate(model.moe_layers):
        for expert in owned:
            gate, up, down = family.expert(layer, expert)
            port.load_expert(
                index,
                expert,
                checkpoint.weight(gate, shape),
                checkpoint.weight(up, shape),
                checkpoint.weight(down, down_shape),
            )


def _experts(config: WorkerConfig, owned: list[int]) -> Experts:
    return Experts(
        moe_layers=len(config.model.moe_layers),
        expert_ids=owned,
        hidden=config.model.hidden,
        width=config.model.expert_width,
        dtype=weight_type(config.dtype),
    )


def open_attention_port(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint, pool: Pool
) -> AttentionPort:
    """The attention side's port; colocated ranks load every expert here."""
    if config.topology.ffn_ranks:
        owners = balanced_owners(config.model.experts, config.topology.ffn_ranks)
        return AttentionSide(_domain(config), config.rank, config.boundary.deadline_ms, owners)
    owned = list(range(config.model.experts))
    port = ColocatedPort(_experts(config, owned), pool)
    _load(port, config.model, family, checkpoint, owned)
    return port


def open_ffn_port(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint, pool: Pool
) -> MegamoeFfnPort:
    """The FFN side's port, its own experts loaded and no other tensor opened."""
    ffn_rank = config.rank - config.topology.attention_ranks
    owners = balanced_owners(config.model.experts, config.topology.ffn_ranks)
    owned = owned_by(owners, ffn_rank)
    experts = _experts(config, owned)
    domain = _domain(config)
    side = FfnSide(domain, ffn_rank, owners, experts, pool, config.boundary.deadline_ms)
    port = MegamoeFfnPort(side, experts)
    _load(port, config.model, family, checkpoint, owned)
    return port
