"""Converting a trained decoder to an early query: rewire, start, repair, compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from afd.qfirst.block import Decoder
from afd.qfirst.errors import QFirstError
from afd.qfirst.repair.arm import (
    ArmFile,
    Schedule,
    digest_of_weights,
    train_arm,
    trainable_copy,
)
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.files import replace_whole, write_whole
from afd.qfirst.repair.fit import fitted_queries
from afd.qfirst.repair.score import Score, score
from afd.qfirst.wiring import Wiring, early_query
from afd.tools.stages import Stages

# A converted layer l reads above layer l - (h + 1) / 2; the paper's depth study holds these out.
_DEPTH_STUDY_HELD_OUT = (1, 2, 3)
# Calibration windows of the closed-form start.
FIT_WINDOWS = 64


class Train(StrEnum):
    """Which projections of the converted layers are trained."""

    WQ = "wq"
    WQ_WO = "wq+wo"

    def names(self, layers: tuple[int, ...]) -> frozenset[str]:
        """The decoder's tensors that this names, in ``layers``."""
        parts = ("q_proj",) if self is Train.WQ else ("q_proj", "o_proj")
        return frozenset(f"layers.{n}.self_attn.{p}.weight" for n in layers for p in parts)


class Start(StrEnum):
    """Where the repair starts: the old query weights, or their closed-form fit to the new input."""

    COPY = "copy"
    FIT = "fit"


@dataclass(frozen=True)
class Conversion:
    """What to do; `wiring` is the read points that result."""

    wiring: Wiring
    train: Train
    start: Start
    schedule: Schedule
    backend: Backend


@dataclass(frozen=True)
class Outcome:
    """Scores on the test windows, losses in nats a token, and the repaired decoder."""

    stock: Score
    untrained: Score
    started: Score
    reference: Score
    converted: Score
    reference_losses: list[float]
    converted_losses: list[float]
    decoder: Decoder


def conversion_wiring(
    decoder: Decoder, half_layers: int, held_out: tuple[int, ...] | None
) -> Wiring:
    """The read points; ``held_out`` None: none at one half-layer, layers 1 to 3 when deeper.

    Raises QFirstError for a decoder that is rewired already, a depth that is even or too deep, or a
    held-out layer that does not exist.
    """
    layers = decoder.config.layers
    if decoder.wiring != Wiring():
        raise QFirstError("the checkpoint is converted already; give the one it was made from")
    if held_out is None:
        held_out = () if half_layers == 1 else _DEPTH_STUDY_HELD_OUT
    missing = [n for n in held_out if not 0 <= n < layers]
    if missing:
        raise QFirstError(f"layer {missing[0]} cannot be held out: the model has layers 0 to "
                          f"{layers - 1}")  # fmt: skip
    wiring = early_query(layers, half_layers, held_out)
    if not wiring.moved_layers(layers):
        raise QFirstError("every layer is held out, so nothing would be converted")
    return wiring


class Bench:
    """Trains and scores decoders that come from one source, and keeps what is known in a folder.

    Everything kept is found by a digest of what decides it, so that runs which share an arm, a
    score or a start do that work once, and a run that was stopped goes on where it was.
    """

    def __init__(
        self, source: Decoder, train: Windows, test: Windows, folder: Path, stages: Stages
    ) -> None:
        self._source = source
        self._train, self._test = train, test
        self._folder, self._stages = folder, stages
        self.source_digest = digest_of_weights(source)
        self._data_digest = digest_of([_tensor_digest(train.ids), _tensor_digest(test.ids)])

    def run(self, plan: Conversion) -> Outcome:
        """The whole comparison; raises QFirstError if the folder holds something foreign."""
        rewired = self._source.rewired(plan.wiring)
        names = plan.train.names(plan.wiring.moved_layers(self._source.config.layers))
        key = {"wiring": plan.wiring.to_json(), "start": Start.COPY.value}
        common = {"backend": plan.backend.value, "threads": torch.get_num_threads()}
        stock = self._score("stock", self._source, common, plan.backend)
        untrained = self._score("rewired", rewired, common | key, plan.backend)
        begun = self._begin(plan, rewired, names)
        key["start"] = plan.start.value
        started = untrained
        if plan.start is not Start.COPY:
            started = self._score("started", begun, common | key, plan.backend)
        base = trainable_copy(self._source, names)
        arms = common | {"trained": sorted(names), "schedule": plan.schedule.identity()}
        base = trainable_copy(self._source, names)
        reference_losses, reference = self._arm("reference", base, plan, arms, stock)
        converted_losses, converted = self._arm("converted", begun, plan, arms | key, started)
        return Outcome(
            stock, untrained, started, reference, converted, reference_losses, converted_losses,
            begun,
        )  # fmt: skip

    def _begin(self, plan: Conversion, rewired: Decoder, names: frozenset[str]) -> Decoder:
        begun = trainable_copy(rewired, names)
        if plan.start is Start.FIT:
            weights = self._fit(plan)
            with torch.no_grad():
                for name, parameter in begun.named_parameters():
                    if name in weights:
                        parameter.copy_(weights[name])
        return begun

    def _fit(self, plan: Conversion) -> Mapping[str, torch.Tensor]:
        data = self._train.spread(min(FIT_WINDOWS, len(self._train)))
        digest = self._identity({"fit": plan.wiring.to_json(), "windows": len(data),
                                 "backend": plan.backend.value})  # fmt: skip
        path = self._folder / f"fit-{digest[:16]}.safetensors"
        if path.is_file():
            try:
                kept: dict[str, torch.Tensor] = load_file(path)
            except (SafetensorError, OSError) as error:
                raise QFirstError(f"{path} is no saved fit: {error}; remove it") from error
            return kept
        with self._stages.stage("Fitting the early queries in closed form", len(data)) as advance:
            fit = fitted_queries(self._source, plan.wiring, data, plan.backend, advance)
        with replace_whole(path) as partial:
            save_file(dict(fit), partial)
        return fit

    def _arm(
        self,
        name: str,
        decoder: Decoder,
        plan: Conversion,
        identity: Mapping[str, Any],
        before: Score,
    ) -> tuple[list[float], Score]:
        if plan.schedule.steps == 0:
            return [], before
        digest = self._identity(identity)
        file = ArmFile(self._folder / f"{name}-{digest[:16]}.safetensors", digest)
        with self._stages.stage(f"Training the {name} arm", plan.schedule.steps) as advance:
            losses = train_arm(decoder, self._train, plan.schedule, plan.backend, file, advance)
        return losses, self._score(name, decoder, identity, plan.backend)

    def _score(
        self, name: str, decoder: Decoder, identity: Mapping[str, Any], backend: Backend
    ) -> Score:
        path = self._folder / f"{name}-{self._identity(identity)[:16]}.score.json"
        if path.is_file():
            try:
                return msgspec.json.decode(path.read_bytes(), type=Score)
            except msgspec.DecodeError as error:
                raise QFirstError(f"{path} is no saved score: {error}; remove it") from error
        with self._stages.stage(f"Scoring the {name} decoder", len(self._test)) as advance:
            result = score(decoder, self._test, backend, advance)
        write_whole(path, msgspec.json.encode(result).decode())
        return result

    def _identity(self, values: Mapping[str, Any]) -> str:
        return digest_of([self.source_digest, self._data_digest, values])


def digest_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _tensor_digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
