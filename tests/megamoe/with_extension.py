"""Runs pytest over another build of the extension: ``with_extension.py MODULE.so ARGUMENTS…``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "afd._megamoe"


def use(path: Path) -> None:
    """Makes every later ``from afd import _megamoe`` find the extension at ``path``."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    use(Path(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
