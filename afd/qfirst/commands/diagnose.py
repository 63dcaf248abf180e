"""``afd-qfirst diagnose``: what an early query does to a checkpoint, forward passes only."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from afd.qfirst.errors import QFirstError
from afd.qfirst.output import require_matplotlib
from afd.tools.default_model import require_torch
from afd.tools.stages import Stages

if TYPE_CHECKING:
    from afd.qfirst.checkpoint import LoadedModel
    from afd.qfirst.repair.corpus import Windows

# Characters read for each token wanted: a token of prose is four or five.
_CHARACTERS_PER_TOKEN = 16


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Adds the command."""
    command = subparsers.add_parser("diagnose", help="a checkpoint's queries, and what they bear")
    add = command.add_argument
    add("--model", required=True, metavar="PATH", help="a checkpoint folder, a .gguf, or smollm2")
    add("--corpus", required=True, type=Path, nargs="+", metavar="FILE", help="UTF-8 text")
    add("--windows", type=int, default=8, metavar="N", help="evenly spaced over the text")
    add("--window", type=int, default=1024, metavar="T", help="tokens of one")
    add("--rank", type=int, default=48, help="what projections are truncated to")
    add("--seed", type=int, default=0, help="of the random error")
    add("--threads", type=int, default=1, metavar="N")
    add("--json", action="store_true")
    add("--plot", type=Path, metavar="FILE", help=".png or .svg")
    return command


def run(options: argparse.Namespace) -> int:
    """Measures, prints, draws."""
    for name in ("windows", "rank", "threads"):
        if getattr(options, name) < 1:
            raise QFirstError(f"--{name} must be at least 1")
    if options.window < 16:
        raise QFirstError("--window must be at least 16 tokens")
    require_matplotlib(options.plot)
    require_torch()
    from afd.qfirst.checkpoint import load
    from afd.qfirst.diagnose import diagnose
    from afd.qfirst.diagnosis import as_json, as_text
    from afd.tools.convert import torch_threads

    stages = Stages()
    with torch_threads(options.threads):
        model = load(options.model)
        data = _sample(model, options.corpus, options.windows, options.window)
        result = diagnose(model.decoder, data, options.rank, options.seed, stages)
    if options.plot is not None:
        from afd.qfirst.diagnosis_plot import draw

        draw(result, options.plot)
    setting = {
        "model": model.name,
        "corpus": [path.name for path in options.corpus],
        "windows": options.windows,
        "window_tokens": options.window,
    }
    print(json.dumps(setting | as_json(result), indent=2) if options.json else as_text(result))
    return 0


def _sample(model: LoadedModel, paths: list[Path], count: int, length: int) -> Windows:
    """``count`` windows that start at evenly spaced characters of the text."""
    import torch

    from afd.qfirst.repair.corpus import CorpusError, Windows, read_corpus, tokenizer_tokens

    text = read_corpus(paths).text
    encode = tokenizer_tokens(model.tokenizer())
    ids, sizes = [], []
    for index in range(count):
        start = index * len(text) // count
        end = min(start + length * _CHARACTERS_PER_TOKEN, (index + 1) * len(text) // count)
        tokens = encode(text[start:end])
        if len(tokens.ids) < length:
            raise CorpusError(
                f"the corpus is too short for {count} windows of {length} tokens; give more text, "
                "or fewer or shorter windows"
            )
        ids.append(tokens.ids[:length])
        sizes.append(tokens.sizes[1:length].sum())
    return Windows(torch.stack(ids), torch.stack(sizes))
