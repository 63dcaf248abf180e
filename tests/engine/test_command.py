"""afd-launch as its user sees it: prompts, presets, JSON, and the interactive chat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from afd import LLM, SamplingParams
from tests.checkpoints import CheckpointSpec, write_checkpoint
from tests.tokenizers import write_tokenizer

QUIET = ["--kv-tokens", "2048", "--threads", "1", "--wire", "fp32", "--dtype", "float32"]
STATS = {
    "decode_tokens_per_s",
    "steps",
    "step_ms_p50",
    "wire_bytes_out",
    "wire_bytes_back",
    "attention_wait_ms",
    "ffn_wait_ms",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model that speaks in words."""
    folder = write_checkpoint(tmp_path_factory.mktemp("command") / "model", CheckpointSpec(seed=2))
    write_tokenizer(folder, CheckpointSpec().vocab)
    return folder


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_tokens=2048, threads=1, wire="fp32", dtype="float32") as engine:
        yield engine


def run(*flags: str) -> tuple[str, str]:
    """Standard output and standard error of a launch that ends well."""
    done = subprocess.run(
        [sys.executable, "-m", "afd.launch", *QUIET, *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def answer(llm: LLM, words: str, new_tokens: int) -> str:
    turn = [{"role": "user", "content": words}]
    return llm.chat(turn, SamplingParams(max_new_tokens=new_tokens)).text


def test_json_is_one_object_with_the_documented_keys(model: Path, llm: LLM) -> None:
    flags = ["--model", str(model), "--m", "2", "--n", "1", "--max-new-tokens", "8", "--json"]
    stdout, stderr = run(*flags, "--prompt", "w9 w8", "--prompt", "w30")
    result: dict[str, Any] = json.loads(stdout)
    assert result.keys() == {"outputs", "stats", "topology"}
    for prompt, output in zip(("w9 w8", "w30"), result["outputs"], strict=True):
        assert output.keys() >= {"text", "token_ids", "prompt_tokens", "finish_reason"}
        assert output["text"] == answer(llm, prompt, 8)
        assert len(output["token_ids"]) == 8 and output["finish_reason"] == "length"
    assert result["outputs"][0]["prompt_tokens"] == len(
        llm.tokenizer.encode_chat([{"role": "user", "content": "w9 w8"}])
    )
    stats = result["stats"]
    assert stats.keys() >= STATS
    spec = CheckpointSpec()
    rows = sum(o["prompt_tokens"] + 7 for o in result["outputs"])
    assert stats["wire_bytes_out"] >= rows * spec.layers * spec.hidden * 4
    assert stats["wire_bytes_back"] >= rows * spec.layers * spec.hidden * 4
    assert stats["decode_tokens_per_s"] > 0 and stats["steps"] >= 8
    ranks = [(rank["role"], rank["experts"]) for rank in result["topology"]["ranks"]]
    assert ranks == [("attention", []), ("attention", []), ("ffn", [0, 1, 2, 3, 4])]
    # The resolved configuration and who is which rank are said at start.
    shown = [line.split() for line in stderr.splitlines()]
    assert ["2", "ffn", "2", "0-4"] in shown and ["1", "attention", "1", "none"] in shown
    assert {"wire=fp32", "page_size=16", "m=2"} <= {word for line in shown for word in line}


def test_a_preset_is_read_and_flags_override_it(model: Path, tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text(f'model = "{model}"\nm = 3\nn = 2\nnum_lanes = 1\n')
    flags = ["--prompt", "w9", "--max-new-tokens", "2", "--json"]
    topology = json.loads(run("--config", str(preset), *flags)[0])["topology"]
    assert (topology["m"], topology["n"]) == (3, 2)
    over = ["--m", "1", "--n", "0"]
    topology = json.loads(run("--config", str(preset), *over, *flags)[0])["topology"]
    assert (topology["m"], topology["n"]) == (1, 0)


def test_a_prompt_file_holds_a_prompt_a_line_and_no_chat_takes_it_bare(
    model: Path, llm: LLM, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("w9 w8\n\nw30\n")
    flags = ["--model", str(model), "--prompt-file", str(file), "--max-new-tokens", "5"]
    stdout, _ = run(*flags, "--no-chat")
    plain = llm.generate(["w9 w8", "w30"], SamplingParams(max_new_tokens=5))
    assert stdout.splitlines() == [output.text for output in plain]
    assert answer(llm, "w9 w8", 5) != plain[0].text


def chat(model: Path, *flags: str) -> pexpect.spawn[str]:
    """An interactive launch on a pseudo-terminal."""
    return pexpect.spawn(
        sys.executable,
        ["-m", "afd.launch", *QUIET, "--model", str(model), *flags],
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 200),
        echo=False,
        env={**os.environ, "TERM": "dumb"},
    )


def end(child: pexpect.spawn[str]) -> None:
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_the_chat_streams_remembers_forgets_and_ends(model: Path, llm: LLM) -> None:
    child = chat(model, "--max-new-tokens", "6")
    first = answer(llm, "w9 w8", 6)
    history = [
        {"role": "user", "content": "w9 w8"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "w30"},
    ]
    second = llm.chat(history, SamplingParams(max_new_tokens=6)).text
    assert second != answer(llm, "w30", 6)
    for line, reply in (
        ("w9 w8", first),
        ("w30", second),
        ("/clear", None),
        ("w30", answer(llm, "w30", 6)),
    ):
        child.expect_exact("you >")
        child.sendline(line)
        if reply is not None:
            child.expect_exact(reply)
    child.expect_exact("you >")
    child.sendeof()
    end(child)


def test_ctrl_c_cuts_an_answer_short_and_the_chat_goes_on(tmp_path: Path) -> None:
    # So long an answer that it is not over before the key is pressed, on any machine.
    spec = CheckpointSpec(seed=2, max_positions=200_000)
    model = write_checkpoint(tmp_path / "model", spec)
    write_tokenizer(model, spec.vocab)
    length = ("--max-new-tokens", "190000", "--kv-tokens", "200000")
    child = chat(model, *length, "--temperature", "2")
    child.expect_exact("you >")
    child.sendline("w9")
    child.expect(r"w\d+ w\d+")
    child.sendintr()
    child.expect_exact("[interrupted]")
    child.expect_exact("you >")
    child.sendline("/quit")
    end(child)


def test_a_script_needs_no_main_guard(model: Path, llm: LLM, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from afd import LLM, SamplingParams\n"
        f"llm = LLM({str(model)!r}, wire='fp32', dtype='float32', kv_tokens=512, threads=1)\n"
        "print(llm.generate('w9 w8', SamplingParams(max_new_tokens=4))[0].text)\n"
    )
    # No close either: leaving the script must end the workers.
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True
    )
    plain = llm.generate("w9 w8", SamplingParams(max_new_tokens=4))[0].text
    assert done.stdout.strip() == plain
