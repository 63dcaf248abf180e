"""Errors of the query-first tools: one sentence with the cause and the way out."""

from __future__ import annotations

from afd.errors import AfdError


class QFirstError(AfdError):
    """A query-first command cannot be done with this input."""


class WiringError(QFirstError):
    """A wiring that no decoder, or not this decoder, can have."""


class ExtraMissingError(QFirstError):
    """An optional package is not installed."""

    def __init__(self, package: str, what: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}; install it with `pip install 'afd[{extra}]'`")
