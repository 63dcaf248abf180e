"""Decode throughput, interleaved in one run: this engine disaggregated, colocated, Transformers.

    python bench/decode.py [--json] [--model NAME_OR_PATH] [--new-tokens N] [--rounds R]

Every system gets the same checkpoint, prompts, number of new tokens and cores. Figures are medians
over rounds of (batch x new tokens) / (wall time of the whole call, prefill of 16 tokens included).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from afd import LLM, SamplingParams

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 16
ENGINES = {"afd_1_1": (1, 1), "afd_2_1": (2, 1), "colocated": (1, 0)}

Prompts = list[list[int]]


def engine(stack: ExitStack, model: str, m: int, n: int, wire: str) -> LLM:
    """A warm engine whose workers share the machine's cores."""
    return stack.enter_context(
        LLM(model, m=m, n=n, wire=wire, kv_tokens=8192, max_running_requests=max(BATCHES))
    )


def run_engine(llm: LLM, prompts: Prompts, new_tokens: int) -> float:
    """Wall time in seconds; proves from the engine's counters that every decode step was full."""
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(max_new_tokens=new_tokens, ignore_eos=True))
    elapsed_s = time.perf_counter() - start
    after = llm.stats()
    tokens = sum(len(output.token_ids) for output in outputs)
    steps = after["steps"] - before["steps"]
    if tokens != len(prompts) * new_tokens or after["tokens"] - before["tokens"] != tokens:
        sys.exit(f"{tokens} tokens came back, {len(prompts) * new_tokens} were asked for")
    if steps > new_tokens + len(prompts):
        sys.exit(f"{steps:.0f} steps for {new_tokens} tokens: not every step ran the whole batch")
    return elapsed_s


def transformers(model: str, threads: int) -> Callable[[Prompts, int], float]:
    """A function like run_engine over Transformers' generate, in the checkpoint's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()

    def run(prompts: Prompts, new_tokens: int) -> float:
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.no_grad():
            out = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        elapsed_s = time.perf_counter() - start
        if out.shape[1] != PROMPT_TOKENS + new_tokens:
            sys.exit("Transformers stopped early")
        return elapsed_s

    return run


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The table as plain data."""
    threads = len(os.sched_getaffinity(0))
    draw = random.Random(0)
    with ExitStack() as stack:
        engines = {
            name: engine(stack, arguments.model, m, n, arguments.wire)
            for name, (m, n) in ENGINES.items()
        }
        first = engines["colocated"]
        vocab = first.config.model.vocab
        reference = transformers(first.config.model_path, threads)
        systems: dict[str, Callable[[Prompts, int], float]] = {
            name: (lambda p, n, llm=llm: run_engine(llm, p, n)) for name, llm in engines.items()
        }
        systems["transformers"] = reference
        samples: dict[str, dict[int, list[float]]] = {s: {b: [] for b in BATCHES} for s in systems}
        for round_index in range(arguments.rounds + 1):
            for batch in BATCHES:
                prompts = [
                    [draw.randrange(vocab) for _ in range(PROMPT_TOKENS)] for _ in range(batch)
                ]
                for name, run in systems.items():
                    elapsed_s = run(prompts, arguments.new_tokens)
                    # The first round warms caches, pages and clocks.
                    if round_index:
                        samples[name][batch].append(batch * arguments.new_tokens / elapsed_s)
    return {
        "tokens_per_s": {
            name: {str(b): statistics.median(values) for b, values in by_batch.items()}
            for name, by_batch in samples.items()
        },
        "model": arguments.model,
        "wire": arguments.wire,
        "threads": threads,
        "rounds": arguments.rounds,
        "new_tokens": arguments.new_tokens,
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people, with the ratios that matter."""
    rates = result["tokens_per_s"]
    lines = [f"{'tokens/s':14}" + "".join(f"{f'batch {b}':>12}" for b in BATCHES)]
    for name, by_batch in rates.items():
        lines.append(f"{name:14}" + "".join(f"{by_batch[str(b)]:12.1f}" for b in BATCHES))
    for top, bottom in (("afd_1_1", "transformers"), ("afd_1_1", "colocated")):
        ratios = "".join(f"{rates[top][str(b)] / rates[bottom][str(b)]:11.2f}x" for b in BATCHES)
        lines.append(f"{top} / {bottom}: {ratios}")
    return "\n".join(lines)


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-moe")
    parser.add_argument("--wire", default="fp8", choices=["fp8", "bf16", "fp32"])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments)
    print(json.dumps(result) if arguments.json else table(result))


if __name__ == "__main__":
    main()
