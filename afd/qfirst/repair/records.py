"""Run records: one JSON file per run, written whole, and the only source of every report."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import torch

from afd.qfirst.errors import QFirstError
from afd.qfirst.repair.files import write_whole
from afd.qfirst.repair.score import Score, paired_error


class RecordError(QFirstError):
    """A run record that is missing, malformed or of another kind."""


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What computed a run."""

    python: str
    torch: str
    machine: str
    threads: int
    dtype: str
    attention: str


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The corpus: its files, the SHA-256 of their text, and how it was cut."""

    files: tuple[str, ...]
    digest: str
    size_bytes: int
    window_tokens: int
    train_windows: int
    score_windows: int
    score_window_tokens: int


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an arm was trained; ``losses`` are nats a token, one a step."""

    steps: int
    batch: int
    seed: int
    learning_rate: float
    warmup: float
    beta1: float
    beta2: float
    weight_decay: float


class ConversionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="conversion"):
    """A conversion, and the reference that got the same fine-tune. Scores are of the test text."""

    model: str
    model_digest: str
    parameters: int
    trained_parameters: int
    layers: int
    half_layers: int
    held_out: tuple[int, ...]
    converted_layers: tuple[int, ...]
    train: str
    start: str
    fit_windows: int
    training: Training
    text: Text
    software: Software
    stock: Score
    untrained: Score
    started: Score
    reference: Score
    converted: Score
    reference_losses: tuple[float, ...]
    converted_losses: tuple[float, ...]
    seconds: float
    command: str

    @property
    def displacement(self) -> float:
        """Bits per byte that rewiring costs before anything is trained."""
        return self.untrained.bits_per_byte - self.stock.bits_per_byte

    @property
    def started_displacement(self) -> float:
        """Bits per byte left by the start, before a step is trained."""
        return self.started.bits_per_byte - self.stock.bits_per_byte

    @property
    def difference(self) -> float:
        """d = (converted + SFT) - (unconverted + the same SFT), Q-First Section 6."""
        return self.converted.bits_per_byte - self.reference.bits_per_byte

    @property
    def difference_error(self) -> float:
        """Standard error of d over the test windows."""
        return paired_error(self.converted, self.reference)

    @property
    def share_removed(self) -> float:
        """Of the displacement, what the repair removed."""
        return 1 - self.difference / self.displacement

    @property
    def share_trained(self) -> float:
        """Of all weights, those that were trained."""
        return self.trained_parameters / self.parameters


class ScratchRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="scratch"):
    """One arm trained from scratch at one seed."""

    arm: str
    shape: dict[str, int]
    parameters: int
    trained_parameters: int
    forward_operations: int
    training: Training
    text: Text
    software: Software
    validation: Score
    test: Score
    losses: tuple[float, ...]
    seconds: float
    command: str


Record = ConversionRecord | ScratchRecord
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def write_record(path: Path, record: Record) -> None:
    """Replaces ``path`` as a whole; a field is a line."""
    fields = msgspec.json.decode(msgspec.json.encode(record), type=dict[str, msgspec.Raw])
    lines = [f" {msgspec.json.encode(name).decode()}: {bytes(value).decode()}"
             for name, value in fields.items()]  # fmt: skip
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_record(path: Path) -> Record:
    """Raises RecordError that names the file."""
    try:
        return _DECODER.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise RecordError(f"run record {path} is missing; run it first") from error
    except OSError as error:
        raise RecordError(f"run record {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise RecordError(f"{path} is not a run record: {error}") from error


def software(dtype: torch.dtype, attention: str) -> Software:
    """This process's own."""
    return Software(
        python=platform.python_version(),
        torch=str(torch.__version__),
        machine=f"{platform.machine()}, {processor()}",
        threads=torch.get_num_threads(),
        dtype=str(dtype).removeprefix("torch."),
        attention=attention,
    )


def processor() -> str:
    """The processor's name and the instruction sets that decide bfloat16's speed."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pairs = [line.partition(":") for line in lines]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    flags = values.get("flags", "").split()
    sets = [f for f in ("avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    return " ".join([values.get("model name", platform.processor()), *sets])
