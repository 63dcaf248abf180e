"""`afd-upcycle`: makes a mixture-of-experts checkpoint from a dense chat model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.progress import Progress

from afd.errors import AfdError
from afd.tools import default_model
from afd.tools.errors import UpcycleError
from afd.tools.folder import whole_folder
from afd.tools.recipe import Recipe
from afd.tools.source import default_gguf
from afd.tools.stages import Stages

_SHAPE_NAMES = ("qwen3_moe", "mixtral", "minimax_m2")
_DEFAULT_SOURCE = "default"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True) as progress:
            path = _run(options, progress)
    except AfdError as error:
        print(f"afd-upcycle: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    recipe = Recipe()
    parser = argparse.ArgumentParser(prog="afd-upcycle", description=__doc__)
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--name", choices=default_model.known_names(), help="a model for the cache")
    goal.add_argument("--output", type=Path, metavar="DIR", help="a new folder to fill")
    parser.add_argument("--shape", choices=_SHAPE_NAMES, default=recipe.shape)
    parser.add_argument("--experts", type=int, default=recipe.experts, metavar="E")
    parser.add_argument("--top-k", type=int, default=recipe.top_k, metavar="K")
    parser.add_argument("--fp8", action="store_true", help="FP8 weights with 128x128 block scales")
    parser.add_argument(
        "--source",
        default=_DEFAULT_SOURCE,
        metavar="PATH",
        help="a Llama .gguf file or checkpoint folder, or with --fp8 a checkpoint to quantise",
    )
    parser.add_argument("--seed", type=int, default=recipe.seed)
    parser.add_argument("--threads", type=int, default=None, metavar="N")
    parser.add_argument("--cache-dir", type=Path, default=None, metavar="DIR")
    return parser


def _run(options: argparse.Namespace, progress: Progress) -> Path:
    if options.threads is not None and options.threads < 1:
        raise UpcycleError(f"--threads must be at least 1, not {options.threads}")
    cache_dir = options.cache_dir or platformdirs.user_cache_path("afd") / "models"
    if options.name is not None:
        return default_model.ensure(options.name, cache_dir, progress, options.threads)
    target: Path = options.output
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UpcycleError(f"--output {target} exists already; choose a new folder")
    default_model.require_torch()
    stages = Stages(progress)
    if _is_moe_folder(options.source):
        return _quantize(Path(options.source), target, options.fp8, stages)
    recipe = Recipe(
        shape=options.shape,
        experts=options.experts,
        top_k=options.top_k,
        fp8=options.fp8,
        seed=options.seed,
    )
    _convert(options.source, recipe, target, cache_dir, options.threads, stages)
    return target


def _is_moe_folder(source: str) -> bool:
    path = Path(source) / "config.json"
    if source == _DEFAULT_SOURCE or not path.is_file():
        return False
    try:
        return json.loads(path.read_text()).get("model_type") in _SHAPE_NAMES
    except ValueError as error:
        raise UpcycleError(f"{path} is not JSON: {error}") from error


def _quantize(source: Path, target: Path, wanted: bool, stages: Stages) -> Path:
    if not wanted:
        raise UpcycleError(f"{source} is a mixture-of-experts already; pass --fp8 to quantise it")
    from afd.tools import fp8

    with whole_folder(target) as folder:
        fp8.quantize_checkpoint(source, folder, stages)
    return target


def _convert(
    source: str, recipe: Recipe, target: Path, cache_dir: Path, threads: int | None, stages: Stages
) -> None:
    path = default_gguf(cache_dir, stages) if source == _DEFAULT_SOURCE else Path(source)
    from afd.tools.convert import convert, torch_threads
    from afd.tools.dense_model import load_folder
    from afd.tools.gguf_model import load_gguf

    if not path.exists():
        raise UpcycleError(f"--source {path} does not exist")
    with torch_threads(threads or default_model.default_threads()), whole_folder(target) as folder:
        with stages.stage("Reading the source model"):
            dense = load_folder(path) if path.is_dir() else load_gguf(path)
        convert(dense, recipe, folder, stages)


if __name__ == "__main__":
    sys.exit(main())
