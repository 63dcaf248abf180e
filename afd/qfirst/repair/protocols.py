"""Protocols: what a campaign runs, its thresholds and its author's prior, written before it ran."""

from __future__ import annotations

from pathlib import Path

import msgspec

from afd.qfirst.errors import QFirstError


class ProtocolError(QFirstError):
    """A protocol file that is missing or malformed."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small decoder over bytes; sizes in elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int


class ScratchProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="scratch"):
    """A campaign of arms trained from scratch; thresholds are bits per byte.

    ``floor``: a smaller movement is none, whatever the seeds say. ``refutation``: a larger one, at
    every seed, refutes that the arm's read point is free.
    """

    question: str
    prior: str
    written: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    floor: float
    refutation: float
    shape: Shape
    steps: int
    batch: int
    window_tokens: int
    learning_rate: float
    warmup: float
    weight_decay: float
    score_windows: int
    dtype: str
    attention: str

    def names(self) -> list[str]:
        """The names of its records."""
        return [record_name(arm, seed) for arm in self.arms for seed in self.seeds]


class ConversionProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="conversion"):
    """Conversions to compare; ``main`` names the runs that must remove ``removed`` at least."""

    question: str
    prior: str
    written: str
    runs: tuple[str, ...]
    main: tuple[str, ...]
    removed: float


Protocol = ScratchProtocol | ConversionProtocol
_DECODER: msgspec.json.Decoder[Protocol] = msgspec.json.Decoder(Protocol)


def record_name(arm: str, seed: int) -> str:
    """A scratch run's record is NAME.json in the records' folder."""
    return f"{arm}-seed{seed}"


def read_protocol(path: Path) -> Protocol:
    """Raises ProtocolError that names the file."""
    try:
        return _DECODER.decode(path.read_bytes())
    except OSError as error:
        raise ProtocolError(f"protocol {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{path} is not a protocol: {error}") from error
