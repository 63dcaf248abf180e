"""Training one arm from scratch under the settings that the paper pins (Q-First, Section 10).

Normalisation weights are float32 whatever the rest is; the tied embedding, which is also the
readout, keeps its initialisation; the attention backend is named and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from afd.qfirst.block import Decoder, RmsNorm, parameter_count
from afd.qfirst.config import DecoderConfig
from afd.qfirst.repair.arm import ArmFile, Schedule, train_arm
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.conversion import digest_of
from afd.qfirst.repair.corpus import Corpus, CorpusError, Windows, byte_tokens, split, windows
from afd.qfirst.repair.forward import window_losses
from afd.qfirst.repair.optimizer import OptimizerSettings
from afd.qfirst.repair.protocols import ScratchProtocol, record_name
from afd.qfirst.repair.records import ScratchRecord, Text, Training, software, write_record
from afd.qfirst.repair.score import score
from afd.qfirst.wiring import Wiring, wiring
from afd.tools.stages import Stages

_BYTES = 256
# The output variance of Qwen3's 0.02 at width 1,024, whatever the width is.
_INITIAL_SPREAD = 0.02 * 1024**0.5


@dataclass(frozen=True)
class ScratchData:
    """Windows of bytes; ``text`` is what the record says of them."""

    train: Windows
    validation: Windows
    test: Windows
    text: Text


def scratch_data(corpus: Corpus, protocol: ScratchProtocol) -> ScratchData:
    """Raises CorpusError if the text is too short for a step or for the windows to score."""
    parts = split(corpus, byte_tokens)
    length = protocol.window_tokens
    train = windows(parts.train, length)
    if len(train) < protocol.batch:
        raise CorpusError(
            f"the corpus is too short: its first 90 % give {len(train)} windows of {length} bytes "
            f"and a step takes {protocol.batch}; give more text"
        )
    count = protocol.score_windows
    return ScratchData(
        train,
        windows(parts.validation, length).spread(count),
        windows(parts.test, length).spread(count),
        Text(
            files=corpus.names,
            digest=corpus.digest,
            size_bytes=corpus.size_bytes,
            window_tokens=length,
            train_windows=len(train),
            score_windows=count,
            score_window_tokens=length,
        ),
    )


def initial_decoder(protocol: ScratchProtocol, read_points: Wiring, seed: int) -> Decoder:
    """The weights depend on the shape and the seed alone; the embedding takes no gradient."""
    shape = protocol.shape
    config = DecoderConfig(
        vocab=_BYTES, hidden=shape.hidden, layers=shape.layers, heads=shape.heads,
        kv_heads=shape.kv_heads, head_dim=shape.head_dim, ffn=shape.ffn, qk_norm=True, tied=True,
        max_positions=protocol.window_tokens,
    )  # fmt: skip
    decoder = Decoder(config, read_points)
    generator = torch.Generator().manual_seed(seed)
    spread = _INITIAL_SPREAD / shape.hidden**0.5
    with torch.no_grad():
        for _, weight in sorted(decoder.named_parameters()):
            if weight.dim() > 1:
                weight.copy_(spread * torch.randn(weight.shape, generator=generator))
    decoder.to(getattr(torch, protocol.dtype))
    for module in decoder.modules():
        if isinstance(module, RmsNorm):
            module.float()
    decoder.embed_tokens.weight.requires_grad_(False)
    return decoder


def forward_operations(decoder: Decoder, length: int, backend: Backend) -> int:
    """Floating-point operations of one forward pass over a window, counted as it runs."""
    with FlopCounterMode(display=False) as counter:
        window_losses(decoder, torch.zeros(1, length, dtype=torch.long), backend)
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class Campaign:
    """``folder`` gets a record per run and, under ``work``, what an unfinished run has saved."""

    protocol: ScratchProtocol
    data: ScratchData
    folder: Path
    command: str
    stages: Stages
    clock: Callable[[], float]

    def run(self, arms: Sequence[str], seeds: Sequence[int]) -> None:
        """Runs what has no record yet, seed by seed, so that an early stop leaves whole seeds."""
        for seed in seeds:
            for arm in arms:
                path = self.folder / f"{record_name(arm, seed)}.json"
                if not path.is_file():
                    write_record(path, self._run_one(arm, seed))

    def _run_one(self, arm: str, seed: int) -> ScratchRecord:
        began = self.clock()
        protocol, data = self.protocol, self.data
        backend = Backend(protocol.attention)
        decoder = initial_decoder(protocol, wiring(arm), seed)
        settings = OptimizerSettings(
            protocol.learning_rate, protocol.warmup, weight_decay=protocol.weight_decay
        )
        schedule = Schedule(protocol.steps, protocol.batch, seed, settings, save_every=100)
        identity = digest_of([
            msgspec.to_builtins(protocol.shape), data.text.digest, protocol.window_tokens,
            protocol.dtype, protocol.attention, arm, schedule.identity(),
        ])  # fmt: skip
        state = ArmFile(self.folder / "work" / f"{record_name(arm, seed)}.safetensors", identity)
        with self.stages.stage(f"Training {arm}, seed {seed}", protocol.steps) as advance:
            losses = train_arm(decoder, data.train, schedule, backend, state, advance)
        with self.stages.stage("Scoring", 2 * protocol.score_windows) as advance:
            validation = score(decoder, data.validation, backend, advance)
            test = score(decoder, data.test, backend, advance)
        operations = forward_operations(decoder, protocol.window_tokens, backend)
        state.path.unlink(missing_ok=True)
        return ScratchRecord(
            arm=arm,
            shape=_shape(protocol),
            parameters=parameter_count(decoder),
            trained_parameters=sum(p.numel() for p in decoder.parameters() if p.requires_grad),
            forward_operations=operations,
            training=Training(
                steps=protocol.steps, batch=protocol.batch, seed=seed,
                learning_rate=settings.peak, warmup=settings.warmup, beta1=settings.beta1,
                beta2=settings.beta2, weight_decay=settings.weight_decay,
            ),
            text=data.text,
            software=software(getattr(torch, protocol.dtype), backend.value),
            validation=validation,
            test=test,
            losses=tuple(losses),
            seconds=self.clock() - began,
            command=self.command,
        )  # fmt: skip


def _shape(protocol: ScratchProtocol) -> dict[str, int]:
    shape: dict[str, int] = msgspec.to_builtins(protocol.shape)
    return shape
