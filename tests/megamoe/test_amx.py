"""The AMX level. No machine at hand has AMX: its instructions are emulated, in two ways."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pybind11
import pytest

from tests.megamoe.native import MAY_COMPILE, ROOT, built, instrumented

SKIPPED = 77

pytestmark = [
    MAY_COMPILE,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="AMX is an extension of x86-64"
    ),
]


def _run(program: str, *arguments: str, sanitizer: str = "") -> str:
    path = built(program, sanitizer) / program
    done = subprocess.run(instrumented(path, *arguments), capture_output=True, text=True)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert f"{arguments[1]} rounds agree" in done.stdout
    return done.stdout


def test_the_kernels_compute_what_the_instructions_define() -> None:
    """Tiles in software, through the whole GEMM and whole experts, bit for bit."""
    assert _run("megamoe-amx", "1", "200").startswith("amx-emulated:")


def test_the_products_own_instructions_do_so_when_executed_one_by_one() -> None:
    """What the compiler emitted is decoded and emulated where the processor refuses it."""
    said = _run("megamoe-amx", "1", "100", "trapped")
    trapped = re.search(r"(\d+) instructions trapped", said)
    assert trapped is not None and int(trapped[1]) > 1000


def test_the_processors_tiles_do_so() -> None:
    assert _run("megamoe-amx-hardware", "1", "200").startswith("amx:")


@pytest.mark.slow
def test_no_access_beyond_a_row_or_a_panel() -> None:
    _run("megamoe-amx", "2", "1000", sanitizer="address,undefined")
    _run("megamoe-amx", "3", "5000")
    _run("megamoe-amx", "4", "2000", "trapped")


@pytest.mark.slow
def test_the_boundary_and_the_attention_side_on_emulated_tiles() -> None:
    """Their own tests, over an extension whose best level is the emulated one."""
    find = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")
    folder = built("_megamoe", arguments=find, AFD_PYTHON="ON", AFD_AMX_EMULATED="ON")
    (module,) = folder.glob("_megamoe*.so")
    names = ("test_fp8_weights.py", "test_boundary.py", "test_random_steps.py", "test_shapes.py")
    tests = [*(f"tests/megamoe/{name}" for name in names), "tests/attention_ops/test_linear.py"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.megamoe.with_extension", str(module), "-v", *tests],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert re.search(r"test_fp8_weights.*\[.*amx-emulated.*\] PASSED", done.stdout)
