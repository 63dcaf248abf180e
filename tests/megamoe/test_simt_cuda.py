"""The SIMT kernels compiled by nvcc: an object that loads without a driver and says so."""

from __future__ import annotations

import re
import struct
import subprocess
import sysconfig
from ctypes import byref
from pathlib import Path

import pytest

from tests.megamoe.native import MAY_COMPILE, built, tool
from tests.megamoe.simt import NO_DEVICE, OK, Error, library

pytestmark = MAY_COMPILE


def _nvcc() -> str:
    """The toolkit's compiler, or that of the pip packages."""
    packaged = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvcc"))
    found = tool("nvcc") or (str(packaged[-1]) if packaged else None)
    if found is None:
        pytest.skip("compiling the CUDA kernels is skipped: no nvcc, neither a toolkit's nor pip's")
    return found


@pytest.fixture(scope="module")
def compiled() -> Path:
    folder = built("megamoe-simt-cuda", AFD_CUDA="ON", AFD_NVCC=_nvcc())
    return folder / "libmegamoe-simt-cuda.so"


def _device_images(data: bytes) -> dict[int, bytes]:
    """Architecture number -> its ELF images (machine 190 is CUDA; the number is in its flags)."""
    starts = [m.start() for m in re.finditer(b"\x7fELF", data)]
    images: dict[int, bytes] = {}
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        (machine,) = struct.unpack_from("<H", data, start + 18)
        (flags,) = struct.unpack_from("<I", data, start + 48)
        if machine == 190:
            architecture = flags >> 8 & 0xFF
            images[architecture] = images.get(architecture, b"") + data[start:end]
    return images


def test_both_roles_are_compiled_for_hopper_and_blackwell(compiled: Path) -> None:
    images = _device_images(compiled.read_bytes())
    assert images.keys() == {90, 100}
    for image in images.values():
        assert b"attention_role" in image and b"ffn_role" in image


def test_the_object_needs_no_cuda_library(compiled: Path) -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", compiled], capture_output=True, text=True, check=True
    ).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert needed and not any("cuda" in line for line in needed)


def test_without_a_device_it_says_so(compiled: Path) -> None:
    error = Error()
    status = library(compiled).megamoe_simt_probe(byref(error))
    if status == OK:
        pytest.skip("this machine has a GPU")
    assert status == NO_DEVICE
    assert error.text.decode().startswith("no device: ")
