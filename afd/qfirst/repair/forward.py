"""The decoder's forward pass as training and scoring run it, and the loss of its readout."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from afd.qfirst.block import Decoder, Rope
from afd.qfirst.repair.attention import Backend, attend
from afd.qfirst.wiring import Order

# Positions whose logits exist at once; a vocabulary is wide.
_READOUT_ROWS = 128


def states(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> list[torch.Tensor]:
    """As `Decoder.states` of the embedded ``ids`` [B, T], with the attention of ``backend``."""
    stream = decoder.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)
    rope = Rope(positions, decoder.config, stream.dtype)
    points = [stream]
    for index, layer in enumerate(decoder.layers):
        if decoder.wiring.order is Order.FFN_FIRST:
            points.append(points[-1] + layer.feed(points[-1]))
        wanted = decoder.wiring.states(index)
        normed = {i: layer.input_layernorm(points[i]) for i in dict.fromkeys(wanted)}
        q, k, v = (normed[i] for i in wanted)
        part = layer.self_attn
        mixed = attend(part.query(q, rope), part.key(k, rope), part.value(v), backend)
        points.append(points[-1] + part.output(mixed))
        if decoder.wiring.order is Order.ATTENTION_FIRST:
            points.append(points[-1] + layer.feed(points[-1]))
    return points


def stream(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> torch.Tensor:
    """The normalised stream that the readout sees, [B, T, C]."""
    return decoder.norm(states(decoder, ids, backend)[-1])


def mean_loss(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> torch.Tensor:
    """Mean cross-entropy, nats, of predicting ids[:, 1:]; no gradient reaches the readout."""
    hidden = stream(decoder, ids, backend)[:, :-1].flatten(0, 1)
    return _FrozenReadout.apply(hidden, ids[:, 1:].flatten(), _readout(decoder))


def window_losses(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> torch.Tensor:
    """Summed cross-entropy, nats, of each row of ids [B, T]: float64 [B]."""
    with torch.no_grad():
        hidden = stream(decoder, ids, backend)[:, :-1]
        weight = _readout(decoder)
        totals = torch.zeros(len(ids), dtype=torch.float64)
        for row in range(len(ids)):
            for rows, goals in zip(
                hidden[row].split(_READOUT_ROWS), ids[row, 1:].split(_READOUT_ROWS), strict=True
            ):
                logits = functional.linear(rows, weight).float()
                totals[row] += functional.cross_entropy(logits, goals, reduction="sum").double()
    return totals


def _readout(decoder: Decoder) -> torch.Tensor:
    source = decoder.embed_tokens if decoder.config.tied else decoder.lm_head
    return source.weight.detach()


class _FrozenReadout(torch.autograd.Function):
    """Cross-entropy that makes its gradient while the logits of a few rows are at hand."""

    @staticmethod
    def forward(
        context: Any, hidden: torch.Tensor, goals: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        count = len(goals)
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, count, _READOUT_ROWS):
            rows = slice(start, start + _READOUT_ROWS)
            goal = goals[rows, None]
            logits = functional.linear(hidden[rows], weight).float()
            partition = logits.logsumexp(-1, keepdim=True)
            total += (partition - logits.gather(1, goal)).sum().double()
            share = logits.sub_(partition).exp_()
            share.scatter_add_(1, goal, share.new_full(goal.shape, -1.0))
            gradient[rows] = share.div_(count).to(weight.dtype) @ weight
        context.save_for_backward(gradient)
        return (total / count).float()

    @staticmethod
    def backward(context: Any, scale: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = context.saved_tensors
        return gradient * scale.to(gradient.dtype), None, None
