"""The microbenchmarks run, and say what they promise, at a small shape."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afd.config import WireScales, WireType

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--hidden", "200", "--width", "48", "--experts", "6", "--top-k", "2", "--tokens", "5",
         "--rounds", "2", "--json"]  # fmt: skip
FIGURES = {"us", "gbps", "gflops", "limit_us", "share_of_limit"}
SETTINGS = {"isa", "weights", "wire", "wire_scales", "return_mode", "threads", "clock"}
KEYS = FIGURES | SETTINGS | {"machine_gbps", "machine_threads", "phases"}
DIFFERENCES = {"swiglu_and_rounding", "pull_and_write_back"}


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the programs are: beside this Python if they were installed with it, else built."""
    beside = Path(sys.executable).parent
    if (beside / "megamoe-bench-ffn").exists():
        return beside
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("no CMake or no C++ compiler to build the benchmarks with")
    folder = ROOT / "build" / "bench"
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DAFD_PYTHON=OFF"]
    subprocess.run(configure, check=True, capture_output=True)
    build = [cmake, "--build", str(folder), "--parallel", "2"]
    subprocess.run(build, check=True, capture_output=True)
    installed = [cmake, "--install", str(folder), "--prefix", str(folder / "installed")]
    subprocess.run(installed, check=True, capture_output=True)
    return folder / "installed" / "bin"


def _run(folder: Path, name: str, *flags: str) -> dict[str, Any]:
    command = [str(folder / f"megamoe-bench-{name}"), *SMALL, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures.keys() >= KEYS
    assert figures["us"] > 0
    assert figures["share_of_limit"] > 0
    return figures


@pytest.mark.slow
def test_every_benchmark_reports_its_time_and_the_limit(folder: Path) -> None:
    for mode in ("slot", "reduced"):
        flags = ["--ffn-ranks", "2", "--return-mode", mode]
        assert _run(folder, "dispatch", *flags)["bytes"] > 5 * 200 * 4
        assert _run(folder, "combine", *flags)["bytes"] > 5 * 200 * 4
        for weights in ("bf16", "fp8", "fp32"):
            figures = _run(folder, "ffn", *flags, "--weights", weights, "--threads", "2")
            phases = figures["phases"]
            assert phases.keys() == {"gate_up", "down"} | DIFFERENCES
            for phase, said in phases.items():
                assert said["by_difference"] == (phase in DIFFERENCES)
                assert (said.keys() & FIGURES) == ({"us"} if said["by_difference"] else FIGURES)
            assert figures["gflops"] > 0
            assert figures["machine_threads"] == figures["threads"] == 2
            assert (figures["weights"], figures["return_mode"]) == (weights, mode)
    figures = _run(folder, "roundtrip")
    assert figures["ratio"] == pytest.approx(figures["us"] / figures["pingpong_us"], rel=1e-2)


@pytest.mark.slow
def test_the_wire_has_the_engines_names(folder: Path) -> None:
    for scales in WireScales:
        figures = _run(folder, "dispatch", "--wire", "fp8", "--wire-scales", scales.value)
        assert (figures["wire"], figures["wire_scales"]) == ("fp8", scales.value)
        assert figures["weights"] is None
    for wire in set(WireType) - {WireType.FP8}:
        figures = _run(folder, "dispatch", "--wire", wire.value)
        assert (figures["wire"], figures["wire_scales"]) == (wire.value, None)


@pytest.mark.slow
def test_a_bad_flag_is_one_sentence(folder: Path) -> None:
    command = [str(folder / "megamoe-bench-ffn"), "--wire", "fp4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "megamoe-bench-ffn: --wire: 'fp4' is not one of bf16, fp32, fp8 (see --help)\n"
    )


@pytest.mark.slow
def test_a_flag_that_changes_nothing_is_refused(folder: Path) -> None:
    command = [str(folder / "megamoe-bench-dispatch"), "--lanes", "4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--lanes changes nothing that this program measures" in done.stderr
    one, two = (_run(folder, "ffn", "--lanes", n) for n in ("1", "2"))
    assert one["bytes"] == two["bytes"] and two["lanes"] == 2
