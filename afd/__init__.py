"""A serving engine for attention-FFN disaggregation; `LLM` is the Python entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd.llm import LLM
    from afd.outputs import RequestOutput
    from afd.sampling import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams"]
__version__ = "0.1.0"

_HOMES = {"LLM": "afd.llm", "RequestOutput": "afd.outputs", "SamplingParams": "afd.sampling"}


def __getattr__(name: str) -> object:
    # Workers import this package too and need none of the front end.
    if name not in _HOMES:
        raise AttributeError(f"module 'afd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
