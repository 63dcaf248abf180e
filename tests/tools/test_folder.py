"""A checkpoint folder exists whole or not at all, whoever is killed and whoever races."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from afd.tools.errors import UpcycleError
from afd.tools.folder import require_space, sole_builder, whole_folder

_BUILD = """
import sys
from pathlib import Path
from afd.tools.folder import sole_builder, whole_folder
target = Path(sys.argv[1])
with sole_builder(target):
    if not target.exists():
        with whole_folder(target) as folder:
            (folder / "config.json").write_text(sys.argv[2])
            print("half", flush=True)
            sys.stdin.readline()
            (folder / "weights").write_text(sys.argv[2])
print("done", flush=True)
"""


def _builder(target: Path, text: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILD, str(target), text]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _say(builder: subprocess.Popen[str], text: str) -> None:
    assert builder.stdin is not None
    builder.stdin.write(text)
    builder.stdin.flush()


def _hear(builder: subprocess.Popen[str]) -> str:
    assert builder.stdout is not None
    return builder.stdout.readline().strip()


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UpcycleError, match="is full") as caught, whole_folder(tmp_path / "model"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UpcycleError, match="MB are needed"):
        require_space(tmp_path, 1 << 60)


def test_a_killed_builder_leaves_no_model_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "model"
    first = _builder(target, "first")
    assert _hear(first) == "half"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not target.exists()
    second = _builder(target, "second")
    assert _hear(second) == "half"
    _say(second, "\n")
    assert second.communicate()[0].strip() == "done"
    assert (target / "weights").read_text() == "second"
    assert {p.name for p in tmp_path.iterdir()} == {"model", ".model.lock"}


def test_a_second_builder_waits_and_builds_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    first = _builder(target, "first")
    assert _hear(first) == "half"
    second = _builder(target, "second")
    _say(first, "\n")
    assert _hear(first) == "done"
    # Had it not waited for the lock, it would have said "half" first.
    assert _hear(second) == "done"
    assert (target / "weights").read_text() == "first"
    for builder in (first, second):
        builder.communicate()


def test_without_the_lock_the_loser_discards(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with whole_folder(target) as slow:
        with whole_folder(target) as fast:
            (fast / "weights").write_text("fast")
        (slow / "weights").write_text("slow")
    assert (target / "weights").read_text() == "fast"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sole_builder(tmp_path / "model"):
        raise ZeroDivisionError
    with sole_builder(tmp_path / "model"):
        pass
