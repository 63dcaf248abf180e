"""Start-up, shutdown and death: one clear sentence, a status, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from afd import LLM, SamplingParams
from afd.config import EngineConfig
from afd.errors import EngineDeadError, LaunchError, RequestError
from afd.launch.engine import Engine
from afd.launch.resolve import resolve

Checkpoints = Callable[[str], Path]
LONG = SamplingParams(max_new_tokens=400, ignore_eos=True)
# Few slots and many long requests: whatever is killed, there is work left for seconds.
MANY = [[1, 2, 3]] * 100
# Bounds on a hang, well below the two minutes and the minute after which the product itself gives
# up on a start and on a step: what ends within them ended by the way under test.
ENDS_WITHIN_S = 45


def open_files() -> list[str]:
    """What this process has open; its symmetric memory and timelines have no other name."""
    names: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return names


@pytest.fixture(autouse=True)
def nothing_is_left(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # pytest's own folder lies elsewhere
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert os.listdir(sockets) == []
    assert not [name for name in open_files() if "memfd:afd" in name]
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=1)
    assert not left


def launch(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "afd.launch", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(*flags: str) -> tuple[int, str]:
    """Exit status and the last line on standard error."""
    process = launch(*flags)
    _, errors = process.communicate(timeout=ENDS_WITHIN_S)
    return process.returncode, errors.strip()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", "no-such-model"], "'no-such-model' is neither a folder"),
        (["--m", "0"], "--m must be at least 1, not 0"),
        (["--n", "-1"], "--n must be at least 0, not -1"),
        (["--n", "99"], "has only 7 experts"),
        (["--num-lanes", "5"], "--num-lanes must be 1 to 4, not 5"),
        (["--wire", "int4"], "invalid choice: 'int4'"),
        (["--wire", "bf16", "--wire-scales", "ue8m0-32"], "the bf16 wire has no scales"),
        (["--promt", "x"], "unrecognized arguments: --promt"),
        (["--batch", "4"], "--batch is for --simulate"),
        (["--simulate", "gb200"], "--simulate makes its own prompts"),
        (["--top-p", "0"], "top_p must be in (0, 1]"),
        (["--prompt", "one two"], "a prompt is token ids like"),
        (["--config", "no-such-preset"], "neither a file nor one of"),
        (["--context-length", "100000"], "above the model's 512"),
    ],
)
def test_a_bad_flag_ends_with_one_sentence(
    checkpoint: Checkpoints, flags: list[str], sentence: str
) -> None:
    base = ["--model", str(checkpoint("qwen3")), "--skip-tokenizer-init", "--prompt", "1 2 3"]
    status, errors = outcome(*base, *flags)
    assert status == 2
    assert sentence in errors
    assert "Traceback" not in errors


def test_a_cache_that_does_not_fit_ends_the_launch_with_one_sentence(
    checkpoint: Checkpoints,
) -> None:
    flags = ["--model", str(checkpoint("qwen3")), "--skip-tokenizer-init", "--prompt", "1 2 3"]
    status, errors = outcome(*flags, "--kv-tokens", "900000000000")
    assert status == 1
    assert "the KV cache does not fit" in errors
    assert "Traceback" not in errors


def test_a_worker_that_dies_while_starting_ends_the_launch(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint("qwen3").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, errors = outcome(
        "--model", str(broken), "--skip-tokenizer-init", "--prompt", "1", "--m", "2", "--n", "2"
    )
    assert status == 1
    assert "rank" in errors
    assert "is cut short" in errors


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0])
def test_ctrl_c_ends_everything_with_130(checkpoint: Checkpoints, after_s: float) -> None:
    """``after_s`` counts from the moment the first child exists."""
    process = launch(
        *("--model", str(checkpoint("mixtral")), "--skip-tokenizer-init", "--m", "2"),
        *("--prompt", "1 2 3", "--max-new-tokens", "100000", "--json"),
        *("--ignore-eos", "--context-length", "500", "--max-running-requests", "1"),
        # One at a time: work for longer than any of these waits, on any machine.
        *("--prompt", "4 " * 400) * 100,
    )
    while not psutil.Process(process.pid).children():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(after_s)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 130
    assert not psutil.wait_procs(children, timeout=ENDS_WITHIN_S)[1]


def test_ctrl_c_pressed_again_and_again_ends_everything_just_the_same(
    checkpoint: Checkpoints,
) -> None:
    process = launch(
        *("--model", str(checkpoint("qwen3")), "--skip-tokenizer-init", "--ignore-eos", "--json"),
        *("--max-new-tokens", "100000", "--context-length", "500", "--max-running-requests", "1"),
        *("--prompt", "4 " * 400) * 100,
    )
    while not psutil.Process(process.pid).children():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.returncode == 130
    assert process.communicate()[1].splitlines()[-1] == "afd-launch: interrupted"


def test_killing_the_launcher_ends_every_child(checkpoint: Checkpoints) -> None:
    code = (
        "from afd import LLM, SamplingParams\n"
        f"llm = LLM({str(checkpoint('qwen3'))!r}, m=2, n=1, skip_tokenizer_init=True)\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=400, ignore_eos=True))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 4
    process.kill()
    process.wait()
    process.stdout.close()
    assert not psutil.wait_procs(children, timeout=ENDS_WITHIN_S)[1]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_worker_killed_while_generating_is_named(checkpoint: Checkpoints, rank: int) -> None:
    options = {"skip_tokenizer_init": True, "threads": 1, "max_running_requests": 2}
    with LLM(checkpoint("qwen3"), m=2, n=2, **options) as llm:
        stream = llm.stream(MANY, LONG)
        for _ in range(20):
            next(stream)
        (child,) = (child for child in llm._engine._children if child.rank == rank)
        child.process.kill()
        start = time.monotonic()
        with pytest.raises(EngineDeadError, match=f"rank {rank} was killed by signal 9") as caught:
            for _ in stream:
                pass
        assert caught.value.rank == rank
        with pytest.raises(EngineDeadError):
            llm.generate([[1]])
    assert time.monotonic() - start < ENDS_WITHIN_S


def test_the_coordinator_killed_while_generating_is_named(checkpoint: Checkpoints) -> None:
    options = {"skip_tokenizer_init": True, "threads": 1, "max_running_requests": 2}
    with LLM(checkpoint("qwen3"), **options) as llm:
        stream = llm.stream(MANY, LONG)
        next(stream)
        for child in psutil.Process().children():
            if "afd_sched" in child.cmdline():
                child.kill()
        with pytest.raises(EngineDeadError, match="the coordinator was killed by signal 9"):
            for _ in stream:
                pass


def test_two_engines_run_side_by_side(checkpoint: Checkpoints) -> None:
    options = {"skip_tokenizer_init": True, "threads": 1}
    with LLM(checkpoint("qwen3"), **options) as a, LLM(checkpoint("minimax"), **options) as b:
        alone = a.generate([[3, 1, 4]], LONG)
        both = zip(a.stream([[3, 1, 4]], LONG), b.stream([[1]] * 2, LONG), strict=False)
        last = [first for first, _ in both][-1]
        assert alone[0].token_ids[: len(last.token_ids)] == last.token_ids


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 1), (1, 0)])
def test_closing_in_the_middle_of_a_step_ends_every_process_in_order(
    checkpoint: Checkpoints, m: int, n: int
) -> None:
    for _ in range(3):
        llm = LLM(checkpoint("qwen3"), m=m, n=n, skip_tokenizer_init=True, threads=1)
        processes = [child.process for child in llm._engine._children]
        stream = llm.stream([[3, 1, 4]] * 2, LONG)
        for _ in range(5):
            next(stream)
        llm.close()
        assert [process.returncode for process in processes] == [0] * (1 + m + n)


def test_leaving_a_stream_early_frees_its_slots(checkpoint: Checkpoints) -> None:
    path = checkpoint("mixtral")
    with LLM(path, skip_tokenizer_init=True, threads=1, max_running_requests=1) as llm:
        for _ in range(3):
            stream = llm.stream([[1, 2]], LONG)
            next(stream)
            stream.close()
        assert len(llm.generate([[5]], SamplingParams(max_new_tokens=3))[0].token_ids) == 3


def test_a_request_that_cannot_run_is_refused_and_the_engine_goes_on(
    checkpoint: Checkpoints,
) -> None:
    with LLM(checkpoint("qwen3"), skip_tokenizer_init=True, threads=1, kv_tokens=64) as llm:
        for prompt, sentence in (
            ([1] * 64, "leaves no room to answer"),
            ([], "a prompt is empty"),
            ([1, 199], r"token id 199 is outside the vocabulary"),
            ("text", "give prompts as lists of token ids"),
        ):
            with pytest.raises(RequestError, match=sentence):
                llm.generate([prompt])
        output = llm.generate([[1, 2]], SamplingParams(max_new_tokens=500, ignore_eos=True))[0]
        assert output.finish_reason == "length"
        assert len(output.token_ids) == 62


def test_a_rank_that_never_comes_is_named(checkpoint: Checkpoints) -> None:
    config = resolve(
        EngineConfig(
            model=str(checkpoint("qwen3")), skip_tokenizer_init=True, start_timeout_s=0.001
        )
    )
    with pytest.raises(LaunchError, match="attention rank 0, FFN rank 1 did not become ready"):
        Engine(config)
