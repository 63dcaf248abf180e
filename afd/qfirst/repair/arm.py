"""One arm: a decoder whose named tensors are trained, resumable at every saved step.

Batches are a pure function of (seed, step), so an arm that is resumed, and another arm of the same
seed, see the same tokens in the same order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from afd.qfirst.block import Decoder
from afd.qfirst.errors import QFirstError
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.files import replace_whole
from afd.qfirst.repair.forward import mean_loss
from afd.qfirst.repair.optimizer import MasterWeights, OptimizerSettings
from afd.tools.stages import Advance

_LOSSES = "losses"


@dataclass(frozen=True)
class Schedule:
    """``steps`` steps of ``batch`` windows; an epoch is a permutation drawn from ``seed``."""

    steps: int
    batch: int
    seed: int
    optimizer: OptimizerSettings
    save_every: int = 25

    def rows(self, step: int, count: int) -> torch.Tensor:
        """Indices [batch] of the windows of a step, out of ``count``."""
        per_epoch = count // self.batch
        epoch, place = divmod(step, per_epoch)
        generator = torch.Generator().manual_seed((self.seed << 20) + epoch)
        order = torch.randperm(count, generator=generator)
        return order[place * self.batch : (place + 1) * self.batch]

    def identity(self) -> dict[str, Any]:
        """What decides the result: everything but how often it is saved."""
        values = asdict(self)
        del values["save_every"]
        return values


def trainable_copy(decoder: Decoder, names: frozenset[str]) -> Decoder:
    """A decoder of the same wiring: ``names`` are copies that take gradients.

    All other weights are shared with ``decoder`` and frozen. Raises QFirstError for a name it
    lacks.
    """
    with torch.device("meta"):
        copy = Decoder(decoder.config, decoder.wiring)
    weights = {n: p.detach() for n, p in decoder.named_parameters()}
    unknown = sorted(names - set(weights))
    if unknown:
        raise QFirstError(f"the decoder has no tensor {unknown[0]} to train")
    weights.update({n: weights[n].clone() for n in names})
    # Assigning a tensor makes a parameter of its own, so the source's flags are not touched.
    copy.load_state_dict(weights, assign=True)
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(name in names)
    copy.train(decoder.training)
    return copy


def train_arm(
    decoder: Decoder,
    data: Windows,
    schedule: Schedule,
    backend: Backend,
    state: ArmFile,
    advance: Advance,
) -> list[float]:
    """Trains the tensors of ``decoder`` that take gradients; returns the loss of every step, nats.

    Starts from ``state`` if it holds steps of this arm, and saves into it. Raises QFirstError if
    the loss is no longer finite.
    """
    trained = {n: p for n, p in decoder.named_parameters() if p.requires_grad}
    weights = MasterWeights(trained, schedule.optimizer)
    losses = state.load_into(weights)
    for _ in losses:
        advance()
    for step in range(len(losses), schedule.steps):
        ids = data.ids[schedule.rows(step, len(data))]
        loss = mean_loss(decoder, ids, backend)
        loss.backward()
        weights.step(schedule.optimizer.rate(step, schedule.steps))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise QFirstError(
                f"the loss is {losses[-1]} at step {step}; use a lower learning rate than "
                f"{schedule.optimizer.peak:g}"
            )
        if len(losses) % schedule.save_every == 0 or len(losses) == schedule.steps:
            state.save(weights, losses)
        advance()
    return losses


class ArmFile:
    """The saved state of one arm: safetensors with master weights, moments and losses."""

    def __init__(self, path: Path, identity: str) -> None:
        """``identity``: a digest of everything that decides the arm's result."""
        self.path = path
        self._identity = identity

    def load_into(self, weights: MasterWeights) -> list[float]:
        """The losses so far, [] if nothing is saved; raises QFirstError for a foreign file."""
        if not self.path.is_file():
            return []
        try:
            with safe_open(self.path, "pt") as file:
                identity = (file.metadata() or {}).get("identity")
                tensors: Mapping[str, torch.Tensor] = {
                    n: file.get_tensor(n) for n in list(file.keys())
                }
        except (SafetensorError, OSError) as error:
            raise QFirstError(f"{self.path} is no saved arm: {error}; remove it") from error
        if identity != self._identity:
            raise QFirstError(f"{self.path} belongs to another run; choose another --work folder")
        losses = [float(x) for x in tensors[_LOSSES]]
        weights.load(tensors, len(losses))
        return losses

    def save(self, weights: MasterWeights, losses: list[float]) -> None:
        """Replaces the file; a reader sees the old state or the new one."""
        tensors = weights.state()
        tensors[_LOSSES] = torch.tensor(losses, dtype=torch.float64)
        with replace_whole(self.path) as partial:
            save_file(tensors, partial, metadata={"identity": self._identity})


def digest_of_weights(decoder: nn.Module) -> str:
    """A SHA-256 over names, dtypes and bytes of all weights, in the order of their names."""
    result = hashlib.sha256()
    for name, parameter in sorted(decoder.named_parameters()):
        header = json.dumps([name, str(parameter.dtype), list(parameter.shape)])
        result.update(header.encode())
        result.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
    return result.hexdigest()
