"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from afd import _megamoe as ops


@pytest.fixture(params=ops.isa_levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once at each level the machine can execute."""
    before = ops.isa_level()
    yield ops.isa_level(request.param)
    ops.isa_level(before)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20240607)


@pytest.fixture(scope="module", params=[1, 3], ids=lambda n: f"threads{n}")
def pool(request: pytest.FixtureRequest) -> ops.Pool:
    """A lone caller, and more threads than the build machine has cores."""
    return ops.Pool(request.param)
