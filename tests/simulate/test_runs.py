"""The whole control plane with simulated workers: the real launcher, coordinator and links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from afd.errors import EngineDeadError
from afd.launch.engine import Launch
from afd.simulate.crew import SimulatedWorkers
from afd.simulate.resolve import resolve_simulation
from afd_sched.messages import SamplingParams, Tokens
from tests.loopback import LOOPBACKS

QWEN = "Qwen/Qwen3-235B-A22B-FP8"
STEP_MS = 4.0


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "p.toml"
    path.write_text(f"gpus_per_node = 4\n[service]\nstep_ms = {STEP_MS}", encoding="utf-8")
    return str(path)


def _run(*flags: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "afd.launch", "--model", QWEN, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, " ".join(done.stderr.split())


@pytest.mark.parametrize("flags", [[], ["--no-overlap", "--host", LOOPBACKS[-1]]])
def test_every_measured_step_runs_the_full_batch_and_none_is_too_fast(
    profile: str, flags: list[str]
) -> None:
    sizes = ["--m", "3", "--n", "1", "--batch", "5", "--context", "100", "--steps", "30"]
    status, out, errors = _run("--simulate", profile, *sizes, "--json", *flags)
    assert status == 0, errors
    values: dict[str, Any] = json.loads(out)
    assert (values["attention_ranks"], values["ffn_ranks"]) == (12, 4)
    assert values["steps"] in (30, 31)
    assert values["overlap"] == (flags == [])
    assert values["modelled_step_ms"] == STEP_MS
    # One commit may come late and the next in time, so single steps may seem short; their mean
    # cannot, but for what the first was late.
    assert values["step_ms_p50"] > 0
    assert 0 < values["tokens_per_s_per_gpu"] < 1.05 * 60 / STEP_MS * 1000 / 16
    assert 0 < values["coordinator_cpu_share"] < 1
    # 16 plans and results, a token of each request to the front end.
    assert 60 * 13 < values["bytes_per_step"] < 16 * 200 + 60 * 20


def test_a_rack_runs_by_its_profile_without_a_checkpoint() -> None:
    sizes = ["--m", "1", "--n", "1", "--batch", "4", "--context", "256", "--steps", "5"]
    status, out, errors = _run("--simulate", "gb200-nvl72", *sizes)
    assert status == 0, errors
    assert "Qwen3-235B-A22B-FP8 on GB200 NVL72: 4 attention and 4 FFN ranks" in out


def test_the_same_command_without_simulate_says_what_is_missing() -> None:
    status, _, errors = _run("--m", "17", "--n", "1")
    assert status == 2
    for part in (
        "the checkpoint is missing (a folder of 236.4 GB",
        "it takes 72 GPUs at 4 a node",
        "68 attention workers of 9.3 GB and 4 FFN workers of 56.8 GB need 858.8 GB",
        "too little",
        "--simulate gb200-nvl72",
    ):
        assert part in errors
    assert "Traceback" not in errors


def test_a_simulated_process_that_dies_is_named_and_its_timeline_is_kept(
    profile: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    values = {"model": QWEN, "m": 1, "n": 1, "timeline": str(trace)}
    simulation = resolve_simulation(profile, values, 100, 4, 5)
    launch = Launch(SimulatedWorkers(simulation))
    try:
        launch.submit([1, 2, 3], SamplingParams(max_new_tokens=90, ignore_eos=True))
        steps = 0
        while steps < 3:
            steps += isinstance(launch.poll(None), Tokens)
        hosts = [c for c in psutil.Process().children() if "afd.simulate" in c.cmdline()]
        hosts[-1].kill()
        with pytest.raises(EngineDeadError, match="simulated ranks from .* killed by signal 9"):
            while True:
                launch.poll(None)
    finally:
        launch.close()
    assert not [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 1 + simulation.topology.ranks
    # One rank has the only request; every FFN rank takes part in every step.
    stepped = {names[e["pid"]] for e in events if e["name"] == "step"}
    assert stepped >= {f"FFN rank {rank}" for rank in range(4, 8)} | {"attention rank 0"}
