"""The protocol's C++ stress program under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def _built(sanitizer: str, tmp_path: Path) -> Path:
    """The program, instrumented; its folder is kept, so that only changes are compiled again."""
    cmake, compiler = _tool("cmake"), shutil.which(os.environ.get("CXX", "c++"))
    if cmake is None or compiler is None:
        pytest.skip("no CMake or no C++ compiler to build the stress program with")
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() { return 0; }")
    link = [compiler, f"-fsanitize={sanitizer}", str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(link, capture_output=True).returncode != 0:
        pytest.skip(f"this compiler cannot link -fsanitize={sanitizer}")
    if subprocess.run([tmp_path / "probe"], capture_output=True).returncode != 0:
        pytest.skip(f"a program built with -fsanitize={sanitizer} does not run on this machine")
    folder = ROOT / "build" / f"stress-{sanitizer.replace(',', '-')}"
    configure = [
        cmake, "-S", str(ROOT), "-B", str(folder), "-DAFD_PYTHON=OFF", "-DAFD_TESTS=ON",
        f"-DAFD_SANITIZE={sanitizer}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
    ]  # fmt: skip
    if not folder.exists() and (ninja := _tool("ninja")):
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(configure, check=True, capture_output=True)
    build = [cmake, "--build", str(folder), "--target", "megamoe-stress", "--parallel", "2"]
    subprocess.run(build, check=True, capture_output=True)
    return folder / "megamoe-stress"


def _run(program: Path, seed: int, rounds: int) -> None:
    done = subprocess.run([program, str(seed), str(rounds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert f"{rounds} rounds agree" in done.stdout


def test_no_data_race_in_the_protocol(tmp_path: Path) -> None:
    _run(_built("thread", tmp_path), seed=1, rounds=20)


@pytest.mark.slow
def test_no_data_race_in_a_long_run(tmp_path: Path) -> None:
    _run(_built("thread", tmp_path), seed=10_000, rounds=1000)


@pytest.mark.slow
def test_no_bad_access_or_undefined_behaviour(tmp_path: Path) -> None:
    _run(_built("address,undefined", tmp_path), seed=1, rounds=200)
