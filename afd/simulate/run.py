"""Runs a simulation: fills every rank, measures a window of full decode steps, reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from afd.errors import EngineDeadError
from afd.launch.engine import Launch
from afd.plan.model_spec import load_model
from afd.simulate.config import Simulation
from afd.simulate.crew import SimulatedWorkers
from afd.simulate.profile import load_profile, service_times
from afd.simulate.resolve import WARM_UP_STEPS
from afd_sched.messages import Rejected, SamplingParams, Stats, Tokens


class SimulationError(EngineDeadError):
    """The simulated launch did something else than decode full batches."""


@dataclass(frozen=True, slots=True)
class Window:
    """The coordinator's counters before and after the measured steps, and the tokens that each
    request had on average when they began."""

    before: dict[str, float]
    after: dict[str, float]
    generated: float

    def grown(self, name: str) -> float:
        """By how much a counter grew."""
        return self.after[name] - self.before[name]


class _Front:
    """The front end of a simulation: counts tokens, step by step."""

    def __init__(self, launch: Launch, simulation: Simulation) -> None:
        self._launch = launch
        self._simulation = simulation
        self._tokens = 0

    def submit(self) -> None:
        """Every request at once; random prompts share no prefix."""
        simulation = self._simulation
        random = np.random.default_rng(0)
        vocabulary = load_model(simulation.model).vocabulary
        sampling = SamplingParams(
            max_new_tokens=simulation.new_tokens, temperature=0.0, ignore_eos=True
        )
        for _ in range(simulation.requests):
            prompt = random.integers(0, vocabulary, simulation.prompt, np.int32)
            self._launch.submit(prompt, sampling)

    def step(self) -> int:
        """Waits for a committed step; its tokens."""
        while True:
            event = self._launch.poll(None)
            if isinstance(event, Rejected):
                raise SimulationError(f"a simulated request was rejected: {event.reason}")
            if isinstance(event, Tokens):
                count = len(event.tokens) // 4
                self._tokens += count
                return count

    def stats(self) -> dict[str, float]:
        """The counters, and the measured step times start anew."""
        self._launch.ask_stats(restart=True)
        while True:
            event = self._launch.poll(None)
            if isinstance(event, Stats):
                return event.values
            if isinstance(event, Tokens):
                self._tokens += len(event.tokens) // 4

    def window(self) -> Window:
        """Fills the batch, warms up, measures."""
        full, most = 0, self._simulation.batch + 2 * WARM_UP_STEPS
        for _ in range(2 * most):
            full = full + 1 if self.step() == self._simulation.requests else 0
            if full == WARM_UP_STEPS:
                break
        else:
            raise SimulationError(
                f"{self._simulation.requests} requests never ran at once; lower --batch"
            )
        before = self.stats()
        generated = self._tokens / self._simulation.requests
        for _ in range(self._simulation.steps):
            self.step()
        window = Window(before, self.stats(), generated)
        if window.grown("tokens") != window.grown("steps") * self._simulation.requests:
            raise SimulationError("a measured step did not run the full batch; lower --steps")
        return window


def report(simulation: Simulation, window: Window) -> dict[str, Any]:
    """What ``--json`` prints; times in ms, ``coordinator_cpu_share`` of one core."""
    topology, engine = simulation.topology, simulation.engine
    profile, model = load_profile(simulation.profile), load_model(simulation.model)
    times = service_times(profile, model, engine.m, engine.n, simulation.context_length)
    steps = window.grown("steps")
    context = simulation.prompt + window.generated + steps / 2
    modelled_ms = times.step(simulation.batch, round(context), engine.num_lanes).step_us / 1000
    measured_ms = window.after["step_ms_p50"]
    control_bytes = window.grown("control_bytes_in") + window.grown("control_bytes_out")
    return {
        "simulated": profile.name,
        "model": model.name,
        "attention_ranks": topology.attention_ranks,
        "ffn_ranks": topology.ffn_ranks,
        "batch": simulation.batch,
        "context": round(context),
        "overlap": engine.overlap,
        "steps": int(steps),
        "tokens_per_s_per_gpu": window.after["decode_tokens_per_s"] / topology.ranks,
        "modelled_tokens_per_s_per_gpu": simulation.requests / modelled_ms * 1000 / topology.ranks,
        "step_ms_p50": measured_ms,
        "step_ms_p99": window.after["step_ms_p99"],
        "modelled_step_ms": modelled_ms,
        "step_over_modelled": measured_ms / modelled_ms,
        "coordinator_cpu_share": window.grown("cpu_ms") / window.grown("clock_ms"),
        "coordinator_cpu_ms_per_step": window.grown("cpu_ms") / steps,
        "bytes_per_step": control_bytes / steps,
    }


def print_report(values: dict[str, Any], console: Console) -> None:
    """The same for people."""
    ahead = "one step ahead" if values["overlap"] else "no overlap"
    lines = [
        f"{values['model']} on {values['simulated']}: {values['attention_ranks']} attention and "
        f"{values['ffn_ranks']} FFN ranks, {values['batch']} requests a rank at context "
        f"{values['context']}, {ahead}",
        f"step     {values['step_ms_p50']:.2f} ms median, {values['step_ms_p99']:.2f} ms p99; "
        f"modelled {values['modelled_step_ms']:.2f} ms: {values['step_over_modelled']:.3f} times",
        f"tokens   {values['tokens_per_s_per_gpu']:.0f} /s/GPU; modelled "
        f"{values['modelled_tokens_per_s_per_gpu']:.0f}",
        f"control  {values['coordinator_cpu_ms_per_step']:.2f} ms CPU a step, "
        f"{values['coordinator_cpu_share']:.1%} of a core; "
        f"{values['bytes_per_step'] / 1000:.1f} kB a step",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def run_simulation(simulation: Simulation, as_json: bool, console: Console) -> None:
    """Runs it and prints the report; raises AfdError."""
    launch = Launch(SimulatedWorkers(simulation))
    try:
        front = _Front(launch, simulation)
        with console.status("filling"):
            front.submit()
            window = front.window()
    finally:
        launch.close()
    values = report(simulation, window)
    if as_json:
        print(json.dumps(values))
    else:
        print_report(values, Console())
