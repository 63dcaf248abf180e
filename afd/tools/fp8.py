"""FP8 block-scaled copies, as published FP8 checkpoints store them.

Linear weights become e4m3 with one float32 scale per 128 x 128 block under ``*_scale_inv``
(weight = e4m3 * scale_inv); norms, embeddings, the language-model head and routers stay as they
are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from afd.tools.errors import UpcycleError
from afd.tools.folder import require_space
from afd.tools.stages import Stages

BLOCK = 128
_E4M3_MAX = 448.0
_LINEAR_SUFFIXES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
_INDEX = "model.safetensors.index.json"


def is_linear(name: str) -> bool:
    """Whether the tensor of this published name is a linear layer's or an expert's weight."""
    return name.endswith(_LINEAR_SUFFIXES)


def quantize_block_scaled(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [rows, cols], float32 [ceil(rows/128), ceil(cols/128)]) of a matrix.

    A block's greatest magnitude maps to 448, the greatest e4m3 value, unless its scale were
    subnormal, which keeps too few digits or none: the scale is then the smallest normal float32.
    Blocks at the edges are smaller; a block of zeros has scale 1. Raises UpcycleError if a value is
    not finite.
    """
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    greatest = blocks.abs().amax((1, 3))
    if not torch.isfinite(greatest).all():
        raise UpcycleError("a weight is not finite, so it has no FP8 form")
    least = torch.finfo(torch.float32).tiny
    scale = torch.where(greatest > 0, (greatest / _E4M3_MAX).clamp_min(least), 1.0)
    scaled = (blocks / scale[:, None, :, None]).clamp(-_E4M3_MAX, _E4M3_MAX)
    values = scaled.to(torch.float8_e4m3fn).view_as(padded)[:rows, :cols]
    return values.contiguous(), scale


def quantize_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every linear weight replaced by its e4m3 values and their ``weight_scale_inv``."""
    result: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if is_linear(name):
            result[name], result[f"{name}_scale_inv"] = quantize_block_scaled(tensor)
        else:
            result[name] = tensor
    return result


def quantization_config(names: list[str]) -> dict[str, Any]:
    """config.json's ``quantization_config`` for a model with these unquantised tensors."""
    kept = sorted(n.removesuffix(".weight") for n in names if n.endswith(".gate.weight"))
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head", *kept],
    }


def quantize_checkpoint(source: Path, target: Path, stages: Stages) -> None:
    """Fills the folder ``target`` with the FP8 copy of the checkpoint folder ``source``.

    File by file, so that a large sharded checkpoint needs the memory of one shard.
    """
    config = json.loads((source / "config.json").read_text())
    if config.get("quantization_config"):
        raise UpcycleError(f"{source} is quantised already")
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise UpcycleError(f"{source} holds no safetensors file to quantise")
    require_space(target, sum(f.stat().st_size for f in files))
    homes: dict[str, str] = {}
    total_bytes = 0
    with stages.stage("Quantising to FP8 blocks", len(files)) as advance:
        for path in files:
            with safe_open(path, "pt") as file:
                tensors = quantize_tensors({n: file.get_tensor(n) for n in file.keys()})  # noqa: SIM118
            save_file(tensors, target / path.name, metadata={"format": "pt"})
            homes.update(dict.fromkeys(tensors, path.name))
            total_bytes += sum(t.nbytes for t in tensors.values())
            advance()
    if (source / _INDEX).is_file():
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(homes.items()))}
        (target / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name != _INDEX:
            shutil.copyfile(path, target / path.name)
    config["quantization_config"] = quantization_config(list(homes))
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
