"""The console scripts: Ctrl-C while modules load, and when all is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = {
    "afd_launch": "afd.launch.cli",
    "afd_plan": "afd.plan.cli",
    "afd_qfirst": "afd.qfirst.cli",
    "afd_upcycle": "afd.tools.upcycle",
}


def outcome(command: str, before: str) -> subprocess.CompletedProcess[str]:
    """Runs ``command --help`` after the lines ``before``."""
    code = f"import os, signal, sys\n{before}\nfrom afd import entry\nsys.exit(entry.{command}())"
    return subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_modules_load_is_130_and_one_line(command: str) -> None:
    before = (
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {COMMANDS[command]!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    run = outcome(command, before)
    assert (run.returncode, run.stdout) == (130, "")
    assert run.stderr == f"{command.replace('_', '-')}: interrupted\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_after_the_end_changes_no_status(command: str) -> None:
    before = (
        "class Last:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT):\n"
        "        kill(me, number)\n"
        "sys.last = Last()\n"
    )
    run = outcome(command, before)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"usage: {command.replace('_', '-')}")
