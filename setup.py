"""Builds the extension ``afd._megamoe`` with CMake; the metadata is in pyproject.toml."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BENCHMARKS = [f"megamoe-bench-{name}" for name in ("dispatch", "ffn", "combine", "roundtrip")]


class CMakeExtension(Extension):
    """An extension whose sources and flags are CMake's business."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    """Configures and builds in ``build/``, which is kept, so a rebuild compiles only changes."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        # Not build_temp: an editable install makes that a fresh folder each time.
        build_dir = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
        build_dir.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={build_dir / 'lib'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]  # fmt: skip
        # Two installs from one checkout share the build directory; ninja does not lock it.
        with open(build_dir / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([*configure, *os.environ.get("CMAKE_ARGS", "").split()], check=True)
            build = ["cmake", "--build", str(build_dir), "--target", "_megamoe", *BENCHMARKS]
            subprocess.run(build, check=True)
            self.copy_file(str(build_dir / "lib" / target.name), str(target))
            self.install_benchmarks(build_dir)

    def install_benchmarks(self, build_dir: Path) -> None:
        """As the distribution's data files for ``bin``, beside its console scripts."""
        binaries = [str((build_dir / name).relative_to(ROOT)) for name in BENCHMARKS]
        data_files = self.distribution.data_files or []
        self.distribution.data_files = [*data_files, ("bin", binaries)]


packages = ["afd", "afd_sched", "afd.configs"]
packages += find_packages(".", include=["afd.*"])
packages += [f"afd_sched.{p}" for p in find_packages("python/afd_sched")]

setup(
    packages=packages,
    package_dir={"": ".", "afd_sched": "python/afd_sched", "afd.configs": "configs"},
    package_data={
        "afd": ["py.typed", "*.pyi"],
        "afd_sched": ["py.typed"],
        "afd.configs": ["*.toml", "**/*.toml"],
    },
    ext_modules=[CMakeExtension("afd._megamoe")],
    cmdclass={"build_ext": CMakeBuild},
    zip_safe=False,
)
