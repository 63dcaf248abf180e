"""Records with round numbers."""

from __future__ import annotations

import math

from afd.qfirst.repair.records import ConversionRecord, ScratchRecord, Software, Text, Training
from afd.qfirst.repair.score import Score

TRAINING = Training(10, 8, 0, 0.01, 0.05, 0.9, 0.95, 0.0)
TEXT = Text(("t",), "00", 1000, 128, 50, 2, 128)
SOFTWARE = Software("3.11", "2.13", "x86_64", 1, "float32", "fused")


def score_of(bits_per_byte: float) -> Score:
    nats = bits_per_byte * math.log(2) * 100
    return Score((nats * 0.9, nats * 1.1), (100, 100))


def conversion_record(converted: float = 0.98) -> ConversionRecord:
    """Displacement 0.15; d 0.03 unless asked otherwise; 7.2 % trained."""
    return ConversionRecord(
        model="m", model_digest="00", parameters=1000, trained_parameters=72, layers=4,
        half_layers=1, held_out=(), converted_layers=(1, 2, 3), train="wq", start="copy",
        fit_windows=0, training=TRAINING, text=TEXT, software=SOFTWARE, stock=score_of(1.0),
        untrained=score_of(1.15), started=score_of(1.15), reference=score_of(0.95),
        converted=score_of(converted), reference_losses=(), converted_losses=(), seconds=1.0,
        command="afd-qfirst convert",
    )  # fmt: skip


def scratch_record(arm: str, seed: int, bits: float = 3.0) -> ScratchRecord:
    """One run at ``bits`` per byte, on the test text and on the validation text."""
    training = Training(10, 8, seed, 0.01, 0.05, 0.9, 0.95, 0.0)
    return ScratchRecord(
        arm=arm, shape={"layers": 2}, parameters=100, trained_parameters=90,
        forward_operations=5, training=training, text=TEXT, software=SOFTWARE,
        validation=score_of(bits), test=score_of(bits), losses=(1.0,), seconds=1.0,
        command="afd-qfirst train",
    )  # fmt: skip
