"""The models that are built on first use and kept in a cache folder.

Importing this module, and asking for a model that is there, needs no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.progress import Progress

from afd.tools.errors import UpcycleError
from afd.tools.folder import sole_builder, whole_folder
from afd.tools.recipe import Recipe
from afd.tools.source import default_gguf
from afd.tools.stages import Stages

_FP8_SUFFIX = "-fp8"
_RECIPES = {
    "smollm2-moe": Recipe(shape="qwen3_moe"),
    "smollm2-mixtral": Recipe(shape="mixtral"),
    "smollm2-minimax-m2": Recipe(shape="minimax_m2"),
}
_MAX_THREADS = 8


def known_names() -> tuple[str, ...]:
    """The names ``ensure`` can build; the first is the default model."""
    return (*_RECIPES, *(name + _FP8_SUFFIX for name in _RECIPES))


def default_threads() -> int:
    """As many threads as this process may run on, up to 8; a conversion gains little beyond."""
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0))))


def ensure(
    name: str, cache_dir: Path, progress: Progress | None = None, threads: int | None = None
) -> Path:
    """The checkpoint folder of a known model, built if it is not there; minutes the first time.

    Processes that ask at the same time build once: the others wait. Raises UpcycleError for an
    unknown name, or if the model cannot be built.
    """
    if name not in known_names():
        raise UpcycleError(f"model {name!r} is not known; known are {', '.join(known_names())}")
    target = cache_dir / name
    if _is_built(target):
        return target
    stages = Stages(progress)
    with stages.stage(f"Building {name} into {target}"), sole_builder(target):
        if not _is_built(target):
            _build(name, target, stages, progress, threads or default_threads())
    return target


def _is_built(target: Path) -> bool:
    return (target / "config.json").is_file()


def _build(
    name: str, target: Path, stages: Stages, progress: Progress | None, threads: int
) -> None:
    require_torch()
    if name.endswith(_FP8_SUFFIX):
        from afd.tools import fp8

        base = ensure(name.removesuffix(_FP8_SUFFIX), target.parent, progress, threads)
        with whole_folder(target) as folder:
            fp8.quantize_checkpoint(base, folder, stages)
        return
    source = default_gguf(target.parent, stages)
    from afd.tools.convert import convert, torch_threads
    from afd.tools.gguf_model import load_gguf

    with torch_threads(threads), whole_folder(target) as folder:
        with stages.stage("Reading the source model"):
            dense = load_gguf(source)
        convert(dense, _RECIPES[name], folder, stages)


def require_torch() -> None:
    """Raises UpcycleError that says how to get what a conversion imports."""
    from importlib.util import find_spec

    missing = [m for m in ("torch", "gguf", "safetensors", "transformers") if find_spec(m) is None]
    if missing:
        raise UpcycleError(
            f"making a checkpoint needs {' and '.join(missing)}; run pip install 'afd[tools]'"
        )
