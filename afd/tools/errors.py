"""What can go wrong while a checkpoint is made."""

from __future__ import annotations

from afd.errors import AfdError


class UpcycleError(AfdError):
    """A checkpoint cannot be made; the message is one sentence with the cause and the way out."""
