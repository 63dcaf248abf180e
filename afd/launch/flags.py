"""The command line of ``afd-launch``: flags named after SGLang's ServerArgs where one exists."""

from __future__ import annotations

import argparse
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from afd import __version__
from afd.config import DtypeChoice, EngineConfig, ReturnMode, WireScales, WireType
from afd.errors import ConfigError
from afd.llm import engine_config
from afd_sched.policy import SchedulePolicy

_EPILOG = """\
examples:
  afd-launch --prompt "What is the capital of France?"
  afd-launch --m 3 --n 2 --model PATH --prompt-file prompts.txt --json
  afd-launch --config smollm2-moe-2x1          an interactive chat, on a terminal
  afd-launch --m 17 --n 1 --model Qwen/Qwen3-235B-A22B-FP8 --simulate gb200-nvl72
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message} (see afd-launch --help)")


def _engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("topology and model").add_argument
    add("--model", "--model-path", help="checkpoint folder, or a default model's name")
    add("--tokenizer-path", help="folder of the tokenizer (default: the model's)")
    add("--skip-tokenizer-init", action="store_true", default=None, help="token ids only")
    add("--m", type=int, help="attention nodes (default 1)")
    add("--n", type=int, help="FFN nodes; 0 keeps the experts on the attention workers (default 1)")
    add("--workers-per-node", type=int, help="ranks of a node (default 1 on CPU)")
    add("--download-dir", help="where default models are built and kept")
    add = parser.add_argument_group("engine").add_argument
    add("--num-lanes", type=int, help="microbatches in flight, 1 to 4 (default 2)")
    add("--wire", choices=[w.value for w in WireType], help="boundary format (default fp8)")
    add(
        "--wire-scales",
        choices=[s.value for s in WireScales],
        help="scales of the fp8 wire: their format, and the elements of a block (default fp32-128)",
    )
    add(
        "--return-mode",
        choices=[r.value for r in ReturnMode],
        help="rows back: one per top-k slot, or per token and FFN rank (default slot)",
    )
    add("--dtype", choices=[d.value for d in DtypeChoice], help="weights and KV (default auto)")
    add("--max-running-requests", type=int, help="per attention rank (default 64)")
    add("--chunked-prefill-size", type=int, help="prompt tokens per rank and step (default 512)")
    add("--page-size", type=int, help="tokens of a KV page (default 16)")
    add("--kv-tokens", "--max-total-tokens", type=int, help="KV capacity per attention rank")
    add("--context-length", type=int, help="longest prompt and answer together")
    add("--mem-fraction-static", type=float, help="share of free memory for KV (default 0.8)")
    add(
        "--no-overlap",
        "--disable-overlap-schedule",
        dest="overlap",
        action="store_false",
        default=None,
        help="plan a step only after the one before it is committed",
    )
    add(
        "--disable-radix-cache",
        action="store_true",
        default=None,
        help="compute every prompt anew instead of sharing known prefixes",
    )
    add(
        "--schedule-policy",
        choices=[p.value for p in SchedulePolicy],
        help="who goes first: first come (default), or the longest known prefix",
    )
    add("--max-queued-requests", type=int, help="refuse more than this many waiting requests")
    add(
        "--enable-priority-scheduling",
        action="store_true",
        default=None,
        help="requests with a higher priority go first; waiting raises it, so none starves",
    )
    add("--threads", type=int, help="CPU threads per worker (default: cores / ranks of a role)")
    add(
        "--host", help="control plane over TCP on this address, encrypted (default: a local folder)"
    )
    add("--timeline", metavar="FILE", help="write a trace of every rank, for Perfetto, at the end")
    add("--measurements", metavar="FILE", help="write measured times for afd-plan at the end")
    add("--start-timeout-s", type=float, help="seconds until every rank must be ready")
    add("--step-timeout-s", type=float, help="seconds a rank may wait for another in a step")
    add("--log-level", choices=["debug", "info", "warning", "error"])


def _run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what to generate").add_argument
    add("--prompt", action="append", default=[], help="a prompt (repeatable)")
    add("--prompt-file", type=Path, help="a file with one prompt per line")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="apply the chat template (default for chat models)",
    )
    add("--max-new-tokens", type=int, default=128)
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=-1)
    add("--seed", "--random-seed", type=int, help="the same seed gives the same tokens")
    add("--stop", action="append", default=[], help="end before this text (repeatable)")
    add("--ignore-eos", action="store_true", help="go on after an end-of-text token")
    add("--json", action="store_true", help="print one JSON object on standard output")


def _simulation_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("simulation").add_argument
    add(
        "--simulate",
        metavar="PROFILE",
        help="play the launch without tensors: a hardware profile (gb200-nvl72), or a TOML file",
    )
    add("--context", type=int, help="tokens of a simulated request (default 8192)")
    add("--batch", type=int, help="requests per attention rank (default: what the GPU holds)")
    add("--steps", type=int, help="decode steps to measure (default 200)")


def parser() -> argparse.ArgumentParser:
    """The parser; a bad flag raises ConfigError."""
    result = _Parser(
        prog="afd-launch",
        description="Serve a mixture-of-experts model with attention and experts on separate "
        "workers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"afd {__version__}")
    result.add_argument("--config", help="a preset: a TOML file, or a name from configs/")
    _engine_flags(result)
    _run_flags(result)
    _simulation_flags(result)
    return result


def read_preset(name: str) -> dict[str, Any]:
    """A preset's values, from a file or from the shipped ``configs/``; raises ConfigError."""
    path = Path(name)
    try:
        if path.is_file():
            return tomllib.loads(path.read_text(encoding="utf-8"))
        shipped = resources.files("afd.configs")
        entry = shipped / f"{name}.toml"
        if entry.is_file():
            return tomllib.loads(entry.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"preset {name} cannot be read: {error}") from error
    known = sorted(
        p.name.removesuffix(".toml") for p in shipped.iterdir() if p.name.endswith(".toml")
    )
    raise ConfigError(f"preset {name!r} is neither a file nor one of {', '.join(known)}")


def given_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The preset's values, overridden by whatever flags were given."""
    values = read_preset(arguments.config) if arguments.config else {}
    for name in EngineConfig.__struct_fields__:
        given = getattr(arguments, name, None)
        if given is not None:
            values[name] = given
    return values


def engine_config_from(arguments: argparse.Namespace) -> EngineConfig:
    """``given_values`` as a configuration."""
    return engine_config(given_values(arguments))
