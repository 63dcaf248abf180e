"""The FFN of one MoE layer against torch, interleaved in one process.

    python bench/boundary.py [--json] [--weights bf16|fp8] [--rounds R] [--clock wall|thread]

One Qwen3-30B-A3B layer (hidden 2048, width 768, 128 experts, top-8), one thread, weights cold: they
are larger than the caches and every system has its own. Ours is the whole boundary: dispatch (FP8
wire), the FFN rank's serve, combine. Torch computes the same weighted sum in bfloat16: a loop of
``F.linear`` over the experts that were routed to, ``grouped_mm``, and Transformers' experts module.
Every round runs every system once; figures are medians. ``--clock thread`` counts this thread's own
time, for a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from afd import _megamoe as ops

HIDDEN, WIDTH, EXPERTS, TOP_K = 2048, 768, 128, 8
TOKENS = (16, 64, 256, 1024)

Run = Callable[[], Any]


@dataclass(frozen=True)
class Step:
    """Tokens of one size, for numpy and for torch."""

    x: NDArray[np.float32]
    ids: NDArray[np.int32]
    weights: NDArray[np.float32]

    @classmethod
    def random(cls, tokens: int) -> Step:
        """Uniform routes to distinct experts."""
        rng = np.random.default_rng(tokens)
        ids = rng.random((tokens, EXPERTS)).argsort(axis=1)[:, :TOP_K].astype(np.int32)
        weights = rng.random((tokens, TOP_K), np.float32)
        weights /= weights.sum(axis=1, keepdims=True)
        return cls(rng.standard_normal((tokens, HIDDEN)).astype(np.float32), ids, weights)


class TorchExperts:
    """bfloat16 weights [experts, 2 * width, hidden] and [experts, hidden, width], and three ways to
    compute them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (EXPERTS, 2 * WIDTH, HIDDEN)
        self.gate_up = torch.randn(size, generator=generator).mul_(HIDDEN**-0.5).bfloat16()
        size = (EXPERTS, HIDDEN, WIDTH)
        self.down = torch.randn(size, generator=generator).mul_(WIDTH**-0.5).bfloat16()
        self._modules = {name: self._module(name) for name in ("eager", "grouped_mm")}

    def _module(self, implementation: str) -> torch.nn.Module:
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

        config = Qwen3MoeConfig(
            hidden_size=HIDDEN,
            moe_intermediate_size=WIDTH,
            num_experts=EXPERTS,
            num_experts_per_tok=TOP_K,
        )
        config._experts_implementation = implementation
        with torch.device("meta"):
            module = Qwen3MoeExperts(config)
        module.gate_up_proj = torch.nn.Parameter(self.gate_up, requires_grad=False)
        module.down_proj = torch.nn.Parameter(self.down, requires_grad=False)
        return module

    def linear(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """One pair of F.linear per expert that has tokens."""
        out = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            token, slot = torch.where(ids == expert)
            gate, up = functional.linear(x[token], self.gate_up[expert]).chunk(2, dim=-1)
            rows = functional.linear(functional.silu(gate) * up, self.down[expert])
            out.index_add_(0, token, rows * weights[token, slot, None])
        return out

    def grouped(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Rows sorted by expert, two grouped products, and the sum back."""
        order = ids.flatten().argsort(stable=True)
        token = order // TOP_K
        ends = torch.bincount(ids.flatten(), minlength=EXPERTS).cumsum(0).to(torch.int32)
        product = torch._grouped_mm(x[token], self.gate_up.transpose(1, 2), offs=ends)
        gate, up = product.chunk(2, dim=-1)
        rows = torch._grouped_mm(functional.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        out = torch.zeros_like(x)
        return out.index_add_(0, token, rows * weights.flatten()[order, None])

    def variants(self, step: Step) -> dict[str, Run]:
        """Every way, on one step."""
        x = torch.from_numpy(step.x).bfloat16()
        ids = torch.from_numpy(step.ids).long()
        weights = torch.from_numpy(step.weights).bfloat16()
        runs: dict[str, Run] = {
            "linear": lambda: self.linear(x, ids, weights),
            "grouped_mm": lambda: self.grouped(x, ids, weights),
        }
        for name, module in self._modules.items():
            runs[f"transformers_{name}"] = lambda m=module: m(x, ids, weights)  # type: ignore[misc]
        return runs


def pack(torch_experts: TorchExperts, dtype: ops.WeightType) -> ops.Experts:
    """The same weights in our form; FP8 with one scale per 128 x 128 block."""
    from afd.tools.fp8 import BLOCK, quantize_block_scaled

    experts = ops.Experts(
        moe_layers=1, expert_ids=list(range(EXPERTS)), hidden=HIDDEN, width=WIDTH, dtype=dtype
    )
    for e in range(EXPERTS):
        gate, up = torch_experts.gate_up[e].chunk(2)
        parts = (gate.contiguous(), up.contiguous(), torch_experts.down[e])
        if dtype is ops.WeightType.BF16:
            experts.load(0, e, *(part.view(torch.uint16).numpy() for part in parts))
            continue
        quantised = [quantize_block_scaled(part) for part in parts]
        codes = [values.view(torch.uint8).numpy() for values, _ in quantised]
        scales = [scale.numpy() for _, scale in quantised]
        experts.load_fp8(0, e, *codes, *scales, block=(BLOCK, BLOCK))
    return experts


class Boundary:
    """Both sides of a 1 x 1 launch in this process: a step is dispatch, serve, combine."""

    def __init__(self, experts: ops.Experts) -> None:
        layout = ops.Layout(
            attention_ranks=1,
            ffn_ranks=1,
            lanes=1,
            max_tokens=max(TOKENS),
            hidden=HIDDEN,
            top_k=TOP_K,
            experts=EXPERTS,
            moe_layers=1,
            wire=ops.Wire.FP8,
        )
        fd = os.memfd_create("afd-bench")
        os.ftruncate(fd, layout.total_bytes)
        domain = ops.Domain(fd, layout, create=True)
        os.close(fd)
        self._attention = ops.AttentionSide(domain, 0, 60_000)
        owner = np.zeros(EXPERTS, np.int32)
        self._ffn = ops.FfnSide(domain, 0, owner, experts, ops.Pool(1), 60_000)
        self._ranks = np.zeros(1, np.int32)
        self._out = np.empty((max(TOKENS), HIDDEN), np.float32)
        self._step = 0

    def run(self, step: Step) -> NDArray[np.float32]:
        """The combined rows."""
        out = self._out[: len(step.x)]
        self._attention.dispatch(self._step, 0, 0, step.x, step.ids, step.weights)
        self._ffn.serve(self._step, 1, self._ranks)
        self._attention.combine(self._step, 0, 0, out)
        self._step += 1
        return out


def check(name: str, got: Any, expected: Any) -> None:
    """All systems compute the same rows, up to bfloat16 and the FP8 wire."""
    error = np.linalg.norm(np.asarray(got, np.float32) - expected) / np.linalg.norm(expected)
    if not error < 0.08:
        sys.exit(f"{name} computes something else: relative error {error:.3f}")


def measure(
    tokens: int, experts: TorchExperts, ours: dict[str, Boundary], rounds: int, clock: str
) -> dict[str, Any]:
    """Medians in microseconds of every system on one step."""
    step = Step.random(tokens)
    runs = experts.variants(step)
    runs |= {name: lambda b=boundary: b.run(step) for name, boundary in ours.items()}  # type: ignore[misc]
    now = time.thread_time if clock == "thread" else time.perf_counter
    expected = runs["linear"]().float().numpy()
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for name, run in runs.items():
            out = run()
            check(name, out.float().numpy() if isinstance(out, torch.Tensor) else out, expected)
        for _ in range(rounds):
            for name, run in runs.items():
                start = now()
                run()
                times[name].append((now() - start) * 1e6)
    us = {name: statistics.median(values) for name, values in times.items()}
    torch_us = {name: us[name] for name in us if name not in ours}
    best = min(torch_us, key=torch_us.__getitem__)
    result: dict[str, Any] = {"best_torch": best, "best_torch_us": us[best], "torch_us": torch_us}
    for name in ours:
        result[name] = {"ffn_us": us[name], "ratio": us[best] / us[name]}
    return result


def main() -> int:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--weights", choices=["bf16", "fp8"], help="only these (default: both)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "thread"], default="wall")
    parser.add_argument("--tokens", type=int, action="append", help="(default: 16 64 256 1024)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    experts = TorchExperts()
    types = {"bf16": ops.WeightType.BF16, "fp8": ops.WeightType.FP8}
    wanted = [arguments.weights] if arguments.weights else ["bf16", "fp8"]
    ours = {name: Boundary(pack(experts, types[name])) for name in wanted}
    report: dict[str, Any] = {"isa": ops.isa_level(), "clock": arguments.clock, "tokens": {}}
    for tokens in arguments.tokens or TOKENS:
        result = measure(tokens, experts, ours, arguments.rounds, arguments.clock)
        # The top level speaks of bf16 weights where they were measured.
        report["tokens"][str(tokens)] = result[wanted[0]] | result
        if not arguments.json:
            line = ", ".join(
                f"{name} {result[name]['ffn_us'] / 1e3:.1f} ms = {result[name]['ratio']:.2f}x"
                for name in ours
            )
            best = f"{result['best_torch']} {result['best_torch_us'] / 1e3:.1f} ms"
            print(f"{tokens:5} tokens: best torch {best}; {line}", flush=True)
    if arguments.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
