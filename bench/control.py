"""Control plane cost at rack scale: the real StepLoop, scheduler, codec and ZMQ sockets.

    python bench/control.py [--json] [--ranks 68] [--batch 96] [--steps 600] [--no-scaling]

A step is timed from the moment its results are filed to the moment the last plan is handed to ZMQ:
arrivals, commit, plan, encode, publish (of the tokens to the front end, too), and the rest of the
loop. What the coordinator does before that (receive) and after it, while the workers run (tidy: the
prefix cache, whose tokens the next step returns, the token history, statistics, and the part of the
next plan that no result changes), is printed beside it; *with tidy* is a step and what follows it,
and so is the CPU time. Exactly one step is committed and one planned in each. Workers are DEALER
sockets in a process of their own that keep the product's slot tables and return random tokens. The
coordinator's thread has a core to itself, as it would have beside a rack; the sockets' own thread
and all workers share the others. *steady*: nothing arrives or ends. *churn*: 1 % of the requests
end in each step and as many arrive, with prompts of about 100 tokens, none like another; longer
ones cost more (they have more pages). Wall time includes what else the machine does; CPU time is
the coordinator's thread alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from control_baseline import codec_cpu_us  # noqa: E402
from control_run import PARTS, Measured, Run  # noqa: E402

FFN_RANKS = 4
SCALING_RANKS = (4, 16, 68, 144, 576)
SCALING_BATCHES = (8, 32, 96, 256)


def percentiles(us: list[float]) -> dict[str, float]:
    """p50 and p99, one decimal."""
    p50, p99 = np.percentile(us, (50, 99))
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}


def measure(ranks: int, batch: int, steps: int, warm_up: int) -> dict[str, Measured]:
    """A run without arrivals and ends, and one with."""
    return {
        name: _phase(ranks, batch, churn, steps, warm_up)
        for name, churn in (("steady", False), ("churn", True))
    }


def _phase(ranks: int, batch: int, churn: bool, steps: int, warm_up: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/control"
        cores = sorted(os.sched_getaffinity(0))
        # What is started from here on inherits the other cores; then this thread takes its own.
        os.sched_setaffinity(0, cores[1:] or cores)
        command = [sys.executable, str(Path(__file__).parent / "control_peers.py")]
        sizes = [str(n) for n in (ranks, FFN_RANKS, batch)]
        with subprocess.Popen([*command, endpoint, *sizes]) as peers:
            run = Run(endpoint, ranks, FFN_RANKS, batch, churn)
            os.sched_setaffinity(0, cores[:1])
            try:
                run.fill()
                run.steps(warm_up)
                return run.steps(steps)
            finally:
                run.stop()
                peers.wait()
                os.sched_setaffinity(0, cores)


def scaling(steps: int) -> list[dict[str, Any]]:
    """Every size in turn; steady and churn."""
    rows = []
    for ranks in SCALING_RANKS:
        for batch in SCALING_BATCHES:
            phases = measure(ranks, batch, steps, warm_up=20)
            row: dict[str, Any] = {"ranks": ranks, "batch": batch}
            for name, phase in phases.items():
                row[name] = percentiles(phase.step_us)
                row[f"{name}_cpu"] = percentiles(phase.cpu_us)
            rows.append(row)
    return rows


def report(ranks: int, batch: int, steps: int, scaling_steps: int) -> dict[str, Any]:
    """Everything, as ``--json`` prints it."""
    phases = measure(ranks, batch, steps, warm_up=100)
    ours, baseline = codec_cpu_us(ranks, batch)
    return {
        "ranks": ranks,
        "batch": batch,
        "steps": steps,
        "step_us": {name: percentiles(phase.step_us) for name, phase in phases.items()},
        "whole_us": {name: percentiles(phase.whole_us) for name, phase in phases.items()},
        "step_cpu_us": {name: percentiles(phase.cpu_us) for name, phase in phases.items()},
        "parts_us": {
            name: {part: percentiles(phase.parts_us[part]) for part in PARTS}
            for name, phase in phases.items()
        },
        "changes_per_step": {name: round(phase.changes, 1) for name, phase in phases.items()},
        "plan_bytes_per_rank": round(phases["steady"].plan_bytes, 1),
        "plan_bytes_per_rank_churn": round(phases["churn"].plan_bytes, 1),
        "ours_cpu_us": round(ours, 1),
        "baseline_cpu_us": round(baseline, 1),
        "scaling": scaling(scaling_steps) if scaling_steps else [],
    }


def table(values: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        f"{values['ranks']} attention ranks x {values['batch']} requests, {values['steps']} steps "
        "(us)",
        f"{'':22}{'p50':>10}{'p99':>10}",
    ]
    for name, numbers in values["step_us"].items():
        cpu = values["step_cpu_us"][name]
        lines.append(f"{name + ' step':22}{numbers['p50']:10.0f}{numbers['p99']:10.0f}")
        for part, split in values["parts_us"][name].items():
            lines.append(f"  {part:20}{split['p50']:10.0f}{split['p99']:10.0f}")
        whole = values["whole_us"][name]
        lines.append(f"  {'with tidy':20}{whole['p50']:10.0f}{whole['p99']:10.0f}")
        lines.append(f"  {'CPU, with tidy':20}{cpu['p50']:10.0f}{cpu['p99']:10.0f}")
        lines.append(f"  arrivals and ends    {values['changes_per_step'][name]:10.1f}")
    ratio = values["baseline_cpu_us"] / values["ours_cpu_us"]
    lines += [
        f"plan: {values['plan_bytes_per_rank']:.0f} bytes a rank, "
        f"{values['plan_bytes_per_rank_churn']:.0f} with churn",
        f"codec CPU a step: ours {values['ours_cpu_us']:.0f}, a map per request "
        f"{values['baseline_cpu_us']:.0f}: {ratio:.0f} times as much",
    ]
    if values["scaling"]:
        columns = ("steady", "steady_cpu", "churn", "churn_cpu")
        lines.append(
            f"{'ranks':>6}{'batch':>6}" + "".join(f"{c + ' p50/p99':>22}" for c in columns)
        )
        for row in values["scaling"]:
            cells = (f"{row[c]['p50']:.0f} / {row[c]['p99']:.0f}" for c in columns)
            lines.append(f"{row['ranks']:6}{row['batch']:6}" + "".join(f"{c:>22}" for c in cells))
    return "\n".join(lines)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--ranks", type=int, default=68, help="attention ranks")
    parser.add_argument("--batch", type=int, default=96, help="running requests of each")
    parser.add_argument("--steps", type=int, default=600, help="measured steps of each phase")
    parser.add_argument("--scaling-steps", type=int, default=50, help="of each size in the table")
    parser.add_argument("--no-scaling", action="store_true", help="without the table of sizes")
    args = parser.parse_args()
    start = time.monotonic()
    values = report(
        args.ranks, args.batch, args.steps, 0 if args.no_scaling else args.scaling_steps
    )
    values["elapsed_s"] = round(time.monotonic() - start, 1)
    print(json.dumps(values) if args.json else table(values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
