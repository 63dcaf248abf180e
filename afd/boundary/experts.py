"""The experts one rank holds, from the checkpoint into packed memory."""

from __future__ import annotations

from afd._megamoe import Experts, WeightType
from afd.checkpoint import Checkpoint
from afd.config import Dtype, WorkerConfig
from afd.models.family import Family

_WEIGHTS = {Dtype.BFLOAT16: WeightType.BF16, Dtype.FLOAT32: WeightType.FP32}
# What one scale of the packed form covers; a checkpoint's block must be a multiple.
_SCALE_ROWS, _SCALE_COLS = 16, 128


def weight_type(dtype: Dtype) -> WeightType:
    """The extension's name of a storage type."""
    return _WEIGHTS[dtype]


def kept_fp8_block(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint
) -> tuple[int, int] | None:
    """The block of a scale if experts keep the checkpoint's FP8 codes, at half the memory of
    bfloat16: they are stored so, float32 was not asked for, and the blocks fit the packed form."""
    model, block = config.model, config.model.fp8_block
    if block is None or config.dtype is not Dtype.BFLOAT16 or not model.moe_layers:
        return None
    fits = block[0] % _SCALE_ROWS == 0 and block[1] % _SCALE_COLS == 0
    stored = checkpoint.is_fp8(family.expert(model.moe_layers[0], 0)[0])
    return block if fits and stored else None


def make_experts(
    config: WorkerConfig, family: Family, checkpoint: Checkpoint, owned: list[int]
) -> Experts:
    """Room for the owned experts of every MoE layer, still empty."""
    keeps_fp8 = kept_fp8_block(config, family, checkpoint) is not None
    return Experts(
        moe_layers=len(config.model.moe_layers),
        expert_ids=owned,
        hidden=config.model.hidden,
        width=config.model.expert_width,
        dtype=WeightType.FP8 if keeps_fp8 else weight_type(config.dtype),
    )


def load_experts(
    experts: Experts,
    config: WorkerConfig,
    family: Family,
    checkpoint: Checkpoint,
    owned: list[int],
) -> None:
    """Packs the owned experts and opens no other tensor; raises CheckpointError, and ValueError
    for an FP8 code that is not a number."""
    model = config.model
    wide, narrow = (model.expert_width, model.hidden), (model.hidden, model.expert_width)
    block = kept_fp8_block(config, family, checkpoint)
    for index, layer in enumerate(model.moe_layers):
        for expert in owned:
            gate, up, down = family.expert(layer, expert)
            if block is None:
                experts.load(
                    index,
                    expert,
                    checkpoint.weight(gate, wide),
                    checkpoint.weight(up, wide),
                    checkpoint.weight(down, narrow),
                )
                continue
            gates, gate_scales = checkpoint.fp8(gate, wide)
            ups, up_scales = checkpoint.fp8(up, wide)
            downs, down_scales = checkpoint.fp8(down, narrow)
            experts.load_fp8(
                index, expert, gates, ups, downs, gate_scales, up_scales, down_scales, block
            )
