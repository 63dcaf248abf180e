"""Training one arm: what changes, what it sees, and going on after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from afd.qfirst.block import Decoder
from afd.qfirst.errors import QFirstError
from afd.qfirst.repair.arm import ArmFile, Schedule, train_arm, trainable_copy
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.conversion import Train
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.optimizer import OptimizerSettings
from afd.qfirst.wiring import early_query

SCHEDULE = Schedule(9, 2, seed=4, optimizer=OptimizerSettings(3e-3), save_every=2)


class Stopped(Exception):
    """The user's interruption."""


def stop_after(steps: int) -> object:
    """An advance function that interrupts training after so many steps."""
    left = iter(range(steps))

    def advance() -> None:
        if next(left, None) is None:
            raise Stopped

    return advance


def data_of(decoder: Decoder) -> Windows:
    generator = torch.Generator().manual_seed(6)
    ids = torch.randint(decoder.config.vocab, (7, 12), generator=generator)
    return Windows(ids, torch.full((7,), 11))


def weights_of(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in decoder.named_parameters()}


@pytest.mark.parametrize("train", list(Train))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_what_is_named_changes(
    decoder: Decoder, train: Train, dtype: torch.dtype, tmp_path: Path
) -> None:
    rewired = decoder.to(dtype).rewired(early_query(decoder.config.layers, 1, (2,)))
    names = train.names(rewired.wiring.moved_layers(decoder.config.layers))
    before = weights_of(decoder)
    arm = trainable_copy(rewired, names)
    train_arm(arm, data_of(decoder), SCHEDULE, Backend.PRODUCTS, ArmFile(tmp_path / "a", "x"), int)
    changed = {n for n, w in weights_of(arm).items() if not torch.equal(w, before[n])}
    assert changed == names
    parts = {"q_proj"} if train is Train.WQ else {"q_proj", "o_proj"}
    assert names == {f"layers.{n}.self_attn.{p}.weight" for n in (1, 3) for p in parts}
    source = weights_of(decoder)
    assert all(torch.equal(source[n], before[n]) for n in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_an_arm_that_was_stopped_ends_with_the_same_bits(
    decoder: Decoder, stop: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    decoder.to(dtype)
    names = Train.WQ_WO.names((1, 2, 3))
    data = data_of(decoder)
    whole = trainable_copy(decoder, names)
    losses = train_arm(
        whole, data, SCHEDULE, Backend.PRODUCTS, ArmFile(tmp_path / "whole", "x"), int
    )
    file = ArmFile(tmp_path / "stopped", "x")
    first = trainable_copy(decoder, names)
    with pytest.raises(Stopped):
        train_arm(first, data, SCHEDULE, Backend.PRODUCTS, file, stop_after(stop))
    resumed = trainable_copy(decoder, names)
    again = train_arm(resumed, data, SCHEDULE, Backend.PRODUCTS, file, int)
    assert again == losses
    one, other = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(one[n], other[n]) for n in one)
    # A finished arm is not trained again.
    assert train_arm(resumed, data, SCHEDULE, Backend.PRODUCTS, file, stop_after(9)) == losses


def test_a_saved_state_of_another_run_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    names = Train.WQ.names((1,))
    data = data_of(decoder)
    arm = trainable_copy(decoder, names)
    train_arm(arm, data, SCHEDULE, Backend.PRODUCTS, ArmFile(tmp_path / "a", "x"), int)
    with pytest.raises(QFirstError, match="belongs to another run"):
        train_arm(arm, data, SCHEDULE, Backend.PRODUCTS, ArmFile(tmp_path / "a", "y"), int)
    (tmp_path / "a").write_bytes(b"torn")
    with pytest.raises(QFirstError, match="is no saved arm"):
        train_arm(arm, data, SCHEDULE, Backend.PRODUCTS, ArmFile(tmp_path / "a", "x"), int)


def test_an_epoch_visits_each_window_once_and_each_seed_in_its_own_order() -> None:
    schedule = Schedule(8, 3, seed=0, optimizer=OptimizerSettings(1e-3))
    epochs = [[schedule.rows(4 * e + s, 12).tolist() for s in range(4)] for e in range(2)]
    for epoch in epochs:
        assert sorted(row for step in epoch for row in step) == list(range(12))
    assert epochs[0] != epochs[1]
    other = Schedule(8, 3, seed=1, optimizer=OptimizerSettings(1e-3))
    assert other.rows(0, 12).tolist() != epochs[0][0]


def test_a_loss_that_is_not_finite_ends_the_run_in_words(decoder: Decoder, tmp_path: Path) -> None:
    arm = trainable_copy(decoder, Train.WQ.names((1,)))
    with torch.no_grad():
        arm.norm.weight[0] = torch.nan
    file = ArmFile(tmp_path / "a", "x")
    with pytest.raises(QFirstError, match="nan at step 0; use a lower learning rate than 0.003"):
        train_arm(arm, data_of(decoder), SCHEDULE, Backend.PRODUCTS, file, int)
    assert not file.path.exists()


def test_the_rate_rises_and_falls_to_nothing() -> None:
    settings = OptimizerSettings(1.0, warmup=0.1)
    rates = [settings.rate(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert 0 < rates[-1] < 1e-3
