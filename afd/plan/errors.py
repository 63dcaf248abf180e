"""The planner's errors: one sentence with the cause and the way out."""

from __future__ import annotations

import difflib


class PlanError(ValueError):
    """A plan cannot be made from this input."""


class UnknownNameError(PlanError):
    """A model or hardware name that the planner does not know."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        close = difflib.get_close_matches(name.lower(), known, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        super().__init__(f"unknown {kind} {name!r}{hint}; known: {', '.join(known)}")


class DoesNotFitError(PlanError):
    """A layout needs more memory than the device has."""

    def __init__(self, role: str, needed_bytes: float, available_bytes: float) -> None:
        over_gb = (needed_bytes - available_bytes) / 1e9
        super().__init__(
            f"{role} needs {needed_bytes / 1e9:.1f} GB per GPU and has "
            f"{available_bytes / 1e9:.1f} GB usable, {over_gb:.1f} GB too little; "
            "use more GPUs for this role, a shorter context or narrower weights or KV"
        )


class RowError(PlanError):
    """A CSV row that does not parse."""

    def __init__(self, path: str, line: int, column: str, why: str) -> None:
        super().__init__(f"{path}: line {line}, column {column!r}: {why}")


class ExtraMissingError(PlanError):
    """An optional package is not installed."""

    def __init__(self, package: str, what: str) -> None:
        super().__init__(f"{what} needs {package}; install it with `pip install 'afd[plan]'`")
