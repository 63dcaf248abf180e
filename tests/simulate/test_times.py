"""Where a simulated step's time comes from, and when a simulated step is due."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from afd.errors import ConfigError
from afd.plan.bench import make_bench
from afd.plan.layouts import Workload, disaggregated
from afd.plan.model_spec import load_model
from afd.plan.profiles import load_hardware
from afd.simulate.executor import SimulatedAttention, SimulatedFfn
from afd.simulate.profile import FixedStep, StepTime, load_profile, service_times
from afd.simulate.resolve import resolve_simulation
from afd.worker.loop import WrongPlanError
from afd_sched.ints import pack_int32, unpack_int32
from afd_sched.messages import Admit, FfnStep, StepPlan
from afd_sched.replica import SlotTable

QWEN = "Qwen/Qwen3-235B-A22B-FP8"


def _profile(folder: Path, text: str) -> str:
    path = folder / "profile.toml"
    path.write_text(f"gpus_per_node = 2\n{text}", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["gb200", "gb200-nvl72", "GB200-NVL72"])
def test_a_shipped_profile_gives_the_planners_step(name: str) -> None:
    model, profile = load_model(QWEN), load_profile(name)
    assert profile.gpus_per_node == 4
    bench = make_bench(model, load_hardware("gb200"), Workload(8192))
    expected = disaggregated(bench, 17, 1, 96, 2)
    got = service_times(profile, model, 17, 1, 8192).step(96, 8192, 2)
    assert got.step_us == pytest.approx(expected.step_ms * 1000)
    assert 0 < got.wait_us < got.step_us
    shorter = service_times(profile, model, 17, 1, 8192).step(96, 4096, 2)
    assert shorter.step_us < got.step_us


def test_a_table_of_terms_goes_through_the_pipeline(tmp_path: Path) -> None:
    model = load_model(QWEN)
    path = _profile(tmp_path, "[service]\nta_us = 100\nte_us = 60\ntc_us = 10\nhead_us = 200")
    got = service_times(load_profile(path), model, 7, 1, 8192).step(96, 8192, 2)
    # T_e + 2 T_c <= T_a: everything is hidden; one lane of one layer takes T_a.
    assert got.wait_us == 0
    assert got.step_us == pytest.approx((100 + 60 + 20) + 100 * (2 * model.layers - 1) + 200)
    one = service_times(load_profile(path), model, 7, 1, 8192).step(96, 8192, 1)
    assert one.wait_us == pytest.approx(80 * model.layers)


def test_a_step_time_is_taken_as_it_is(tmp_path: Path) -> None:
    path = _profile(tmp_path, "[service]\nstep_ms = 25")
    assert service_times(load_profile(path), load_model(QWEN), 1, 1, 1).step(5, 6, 1) == StepTime(
        25_000, 0
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[service]\nstep = 25", "unknown field `step`"),
        ("[service]\nta_us = 25", "needs step_ms above 0, or ta_us, te_us and tc_us"),
        ("[service", "is not TOML"),
        ("", "field 'name' is missing"),
    ],
)
def test_a_bad_profile_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = _profile(tmp_path, text)
    with pytest.raises(ConfigError, match=sentence):
        service_times(load_profile(path), load_model(QWEN), 1, 1, 1)


@pytest.mark.parametrize(
    ("profile", "values", "numbers", "sentence"),
    [
        ("nope", {}, (None, None, None), "unknown profile; known: .*gb200-nvl72"),
        ("lpx", {}, (None, None, None), "keeps no KV cache"),
        ("gb200", {"model": "x"}, (None, None, None), "unknown model 'x'"),
        ("gb200", {}, (8192, 97, None), "--batch 97 at --context 8192 needs 153 GB.*at most 96"),
        ("gb200", {}, (8192, 96, 9000), "too short for --steps 9000"),
        ("gb200", {"n": 0}, (None, None, None), "disaggregated"),
        ("gb200", {"m": 1000}, (None, None, None), "at most 1024"),
        ("gb200", {"num_lanes": 9}, (None, None, None), "--num-lanes"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(
    profile: str,
    values: dict[str, object],
    numbers: tuple[int | None, int | None, int | None],
    sentence: str,
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve_simulation(profile, {"model": QWEN, "m": 17, "n": 1, **values}, *numbers)


def test_the_defaults_are_the_rack_of_the_profile() -> None:
    simulation = resolve_simulation("gb200", {"model": QWEN, "m": 17, "n": 1}, None, None, None)
    assert (simulation.topology.attention_ranks, simulation.topology.ffn_ranks) == (68, 4)
    assert (simulation.batch, simulation.steps) == (96, 200)
    assert simulation.prompt + simulation.new_tokens == simulation.context_length == 8192


def _attention(step_us: float) -> SimulatedAttention:
    times = FixedStep(StepTime(step_us, step_us / 4))
    return SimulatedAttention(0, SlotTable(4, 8), load_model(QWEN), times)


def _prompt_plan() -> StepPlan:
    admit = Admit(0, 7, pack_int32([1, 2, 3]), 0.0, 1.0, -1, 0)
    return StepPlan(0, 1, b"", (admit,), pack_int32([(0, 5)]), pack_int32([(0, 3)]))


# What the rank itself does is charged by CPU time; a generous bound on it.
_OWN_NS = 20_000_000


def test_a_step_starts_when_its_plan_is_there_and_the_last_one_over() -> None:
    rank = _attention(step_us=1000)
    rank.begin(_prompt_plan(), arrived_ns=10_000_000_000)
    assert 0 <= rank.due_ns - 10_000_000_000 < _OWN_NS, "prompts take no modelled time"
    first = rank.finish()
    assert len(unpack_int32(first.tokens)) == 1 and first.busy_us == 0
    rank.begin(StepPlan(1, 1), arrived_ns=11_000_000_000)
    due = rank.due_ns
    assert 11_001_000_000 <= due < 11_001_000_000 + _OWN_NS
    result = rank.finish()
    assert (result.busy_us, result.wait_us) == (750, 250)
    model = load_model(QWEN)
    routed = model.moe_layers * model.experts_per_token * model.hidden
    assert (result.bytes_out, result.bytes_back) == (routed, 2 * routed)
    # The plan was here long before: however late this process is, the rank lost no time.
    rank.begin(StepPlan(2, 1), arrived_ns=11_000_500_000)
    assert due + 1_000_000 <= rank.due_ns < due + 1_000_000 + _OWN_NS


def test_a_rank_does_not_take_the_other_roles_plan() -> None:
    with pytest.raises(WrongPlanError, match="FfnStep"):
        _attention(1).begin(FfnStep(0, 1, b""), 0)
    with pytest.raises(WrongPlanError, match="StepPlan"):
        SimulatedFfn(4).begin(StepPlan(0, 1), 0)
    ffn = SimulatedFfn(4)
    ffn.begin(FfnStep(3, 1, pack_int32(np.arange(2))), 0)
    assert (ffn.finish().step, ffn.finish().rank, ffn.due_ns) == (3, 4, 0)
