"""Every error a user can meet; each message is one sentence with the cause and the way out."""

from __future__ import annotations


class AfdError(Exception):
    """Base of the engine's own errors."""


class ConfigError(AfdError):
    """A flag, preset or argument cannot be used."""


class UnsupportedModelError(AfdError):
    """The checkpoint's architecture, or a field of its configuration, is not served."""


class CheckpointError(AfdError):
    """A checkpoint is missing, incomplete or malformed."""


class LaunchError(AfdError):
    """The processes did not all come up."""


class EngineDeadError(AfdError):
    """The run cannot go on; ``rank`` is the global rank that failed, or None."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class RequestError(AfdError):
    """A request cannot be run as asked."""
