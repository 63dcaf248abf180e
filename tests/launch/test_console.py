"""What a command says to a file does not depend on the terminal it was started from."""

from __future__ import annotations

import subprocess
import sys

import pytest

SENTENCE = " ".join(["word"] * 100)


@pytest.mark.parametrize("columns", ["20", "300", None])
def test_a_sentence_in_a_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    program = (
        "import sys; from afd.launch.console import stderr_console\n"
        "stderr_console().print(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, SENTENCE], capture_output=True, text=True, check=True
    )
    assert done.stderr == f"{SENTENCE}\n"
