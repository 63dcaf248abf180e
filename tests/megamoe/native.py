"""Builds what the C++ tests run, in folders that are kept: only changes are compiled again."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

# For modules whose first test compiles what they run, which takes a slow machine minutes.
MAY_COMPILE = pytest.mark.timeout(1200)
ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> str | None:
    """A program beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@cache
def _fixed_addresses() -> tuple[str, ...]:
    setarch = shutil.which("setarch")
    if setarch is None or subprocess.run([setarch, "-R", "true"], capture_output=True).returncode:
        return ()
    return (setarch, "-R")


def instrumented(program: Path, *arguments: str) -> list[str]:
    """The command of a program built with a sanitizer. Where the machine allows it, addresses are
    not randomised: over a wide enough range, older thread sanitizers fail on some runs."""
    return [*_fixed_addresses(), str(program), *arguments]


def _require_sanitizer(compiler: str, sanitizer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cpp"
        probe.write_text("int main() { return 0; }")
        link = [compiler, f"-fsanitize={sanitizer}", str(probe), "-o", str(probe.with_suffix(""))]
        if subprocess.run(link, capture_output=True).returncode != 0:
            pytest.skip(f"this compiler cannot link -fsanitize={sanitizer}")
        if subprocess.run(instrumented(probe.with_suffix("")), capture_output=True).returncode != 0:
            pytest.skip(f"a program built with -fsanitize={sanitizer} does not run on this machine")


def built(
    target: str, sanitizer: str = "", arguments: tuple[str, ...] = (), **options: str
) -> Path:
    """The build folder in which CMake's ``target`` is up to date; skips without a compiler.

    ``options`` are CMake cache entries, each combination a folder; ``arguments`` are further ones
    for CMake. With ``sanitizer`` everything is instrumented.
    """
    cmake, compiler = tool("cmake"), shutil.which(os.environ.get("CXX", "c++"))
    if cmake is None or compiler is None:
        pytest.skip(f"no CMake or no C++ compiler to build {target} with")
    if sanitizer:
        _require_sanitizer(compiler, sanitizer)
    parts = ["native", *sanitizer.split(","), *(f"{k}-{v}" for k, v in sorted(options.items()))]
    folder = ROOT / "build" / "-".join(part for part in parts if part).replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    configure = [
        cmake, "-S", str(ROOT), "-B", str(folder), "-DAFD_PYTHON=OFF", "-DAFD_TESTS=ON",
        f"-DAFD_SANITIZE={sanitizer}",
        *(f"-D{key}={value}" for key, value in options.items()), *arguments,
    ]  # fmt: skip
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "CMakeCache.txt").exists() and (ninja := tool("ninja")):
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        _checked(configure)
        _checked([cmake, "--build", str(folder), "--target", target, "--parallel", "2"])
    return folder


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
