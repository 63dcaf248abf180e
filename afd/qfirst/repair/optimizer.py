"""AdamW on float32 master weights, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

_MASTER, _FIRST, _SECOND = "master/", "first/", "second/"


@dataclass(frozen=True)
class OptimizerSettings:
    """A cosine from ``peak`` to zero after a linear warm-up over ``warmup`` of the steps."""

    peak: float
    warmup: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of ``step``, counted from 0 to steps - 1."""
        rise = max(1, round(self.warmup * steps))
        if step < rise:
            return self.peak * (step + 1) / rise
        done = (step - rise) / max(1, steps - rise)
        return self.peak * 0.5 * (1 + math.cos(math.pi * done))


class MasterWeights:
    """Float32 copies of trained parameters with their moments.

    A parameter in bfloat16 cannot take a step smaller than its spacing; its master can.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings
    ) -> None:
        """``parameters`` by name; each step rounds the masters back into them."""
        self._parameters = dict(sorted(parameters.items()))
        self._masters = {n: p.detach().float().clone() for n, p in self._parameters.items()}
        self._adam = torch.optim.AdamW(
            self._masters.values(),
            lr=settings.peak,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            foreach=False,
        )

    def step(self, rate: float) -> None:
        """Takes the parameters' gradients, which are gone afterwards."""
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            self._masters[name].grad = None if gradient is None else gradient.float()
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._publish()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything but the step count; float32 tensors under names of their own."""
        tensors = {}
        for name, master in self._masters.items():
            moments = self._adam.state.get(master, {})
            tensors[_MASTER + name] = master
            tensors[_FIRST + name] = moments.get("exp_avg", torch.zeros_like(master))
            tensors[_SECOND + name] = moments.get("exp_avg_sq", torch.zeros_like(master))
        return tensors

    def load(self, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        """Takes over what `state` gave after ``step`` steps."""
        for name, master in self._masters.items():
            master.copy_(tensors[_MASTER + name])
            self._adam.state[master] = {
                "step": torch.tensor(float(step)),
                "exp_avg": tensors[_FIRST + name].clone(),
                "exp_avg_sq": tensors[_SECOND + name].clone(),
            }
        self._publish()

    def _publish(self) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._masters[name])
