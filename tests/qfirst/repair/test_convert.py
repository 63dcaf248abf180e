"""`afd-qfirst convert` end to end on a tiny random checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from afd.qfirst.block import Decoder
from afd.qfirst.checkpoint import load
from afd.qfirst.cli import main
from afd.qfirst.repair import arm
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.forward import mean_loss
from afd.qfirst.repair.records import ConversionRecord, read_record
from afd.qfirst.wiring import Wiring, early_query
from tests.qfirst.repair.conftest import LAYERS

SMALL = ["--batch", "2", "--window", "16", "--score-windows", "4", "--score-window", "24",
         "--dtype", "float32", "--save-every", "2"]  # fmt: skip


def convert(checkpoint: Path, text: Path, out: Path, *more: str, steps: int = 5) -> int:
    return main([
        "convert", "--model", str(checkpoint), "--corpus", str(text), "--steps", str(steps),
        "--seed", "1", "--out", str(out), *SMALL, *more,
    ])  # fmt: skip


def record_of(out: Path) -> ConversionRecord:
    record = read_record(out / "record.json")
    assert isinstance(record, ConversionRecord)
    return record


def queries(folder: Path) -> dict[str, torch.Tensor]:
    return {n: w for n, w in load_file(folder / "model.safetensors").items() if "q_proj" in n}


@pytest.mark.parametrize("start", ["fit", "copy"])
@pytest.mark.parametrize("train", ["wq", "wq+wo"])
def test_a_converted_checkpoint_comes_back_as_it_was_scored(
    checkpoint: Path, text: Path, tmp_path: Path, start: str, train: str
) -> None:
    out = tmp_path / "run"
    assert convert(checkpoint, text, out, "--start", start, "--train", train) == 0
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["wiring"] == early_query(LAYERS, 1).to_json()
    before = load_file(checkpoint / "model.safetensors")
    after = load_file(out / "model" / "model.safetensors")
    changed = {n for n in after if not torch.equal(after[n], before[n])}
    parts = ["q_proj"] if train == "wq" else ["q_proj", "o_proj"]
    assert changed == {
        f"model.layers.{n}.self_attn.{p}.weight" for n in range(1, LAYERS) for p in parts
    }
    record = record_of(out)
    assert record.trained_parameters == sum(after[n].numel() for n in changed)
    # Scored again, by the decoder's own forward pass, from what was saved.
    converted = load(str(out / "model")).decoder
    assert converted.wiring == early_query(LAYERS, 1)
    assert _bits(converted, checkpoint, text) == pytest.approx(
        record.converted.bits_per_byte, rel=1e-5
    )
    stock = load(str(checkpoint)).decoder
    assert _bits(stock, checkpoint, text) == pytest.approx(record.stock.bits_per_byte, rel=1e-5)
    untrained = stock.rewired(early_query(LAYERS, 1))
    assert _bits(untrained, checkpoint, text) == pytest.approx(
        record.untrained.bits_per_byte, rel=1e-5
    )


def _bits(decoder: torch.nn.Module, checkpoint: Path, text: Path) -> float:
    """The last 5 % of the text in four of its windows of 24 words, independently of the product."""
    words = text.read_text()
    tail = words[int(len(words) * 0.95) :]
    tokenizer = load(str(checkpoint)).tokenizer()
    encoded = tokenizer(tail, return_offsets_mapping=True)
    ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
    count = len(ids) // 24
    nats, size = 0.0, 0
    for i in (round(j * (count - 1) / 3) for j in range(4)):
        window = torch.tensor([ids[24 * i : 24 * i + 24]])
        with torch.no_grad():
            logits = decoder(window)[0, :-1].double().log_softmax(-1)
        nats -= float(logits.gather(1, window[0, 1:, None]).sum())
        size += ends[24 * i + 23] - ends[24 * i]
    return nats / 0.6931471805599453 / size


@pytest.mark.parametrize("start", ["fit", "copy"])
def test_the_reference_sees_the_same_batches_in_the_same_order(
    checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """What reaches the loss, by the wiring of the decoder that it reaches."""
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}

    def watch(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> torch.Tensor:
        seen[decoder.wiring == Wiring()].append(ids.clone())
        return mean_loss(decoder, ids, backend)

    monkeypatch.setattr(arm, "mean_loss", watch)
    assert convert(checkpoint, text, tmp_path / "run", "--start", start) == 0
    assert len(seen[True]) == len(seen[False]) == 5
    assert all(torch.equal(a, b) for a, b in zip(seen[True], seen[False], strict=True))
    assert len({tuple(ids.flatten().tolist()) for ids in seen[True]}) == 5


@pytest.mark.parametrize("calls", [1, 4, 6, 9])
def test_an_interrupted_run_goes_on_to_the_same_record(
    checkpoint: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calls: int,
) -> None:
    """Five steps an arm, saved every second: stops within both arms, before and after a save."""
    assert convert(checkpoint, text, tmp_path / "whole") == 0
    left = iter(range(calls))

    def interrupted(decoder: Decoder, ids: torch.Tensor, backend: Backend) -> torch.Tensor:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return mean_loss(decoder, ids, backend)

    with monkeypatch.context() as patch:
        patch.setattr(arm, "mean_loss", interrupted)
        assert convert(checkpoint, text, tmp_path / "run") == 130
    assert "goes on from the last saved step" in capsys.readouterr().err
    assert not (tmp_path / "run" / "record.json").exists()
    assert convert(checkpoint, text, tmp_path / "run") == 0
    whole, again = record_of(tmp_path / "whole"), record_of(tmp_path / "run")
    assert msgspec.structs.replace(again, seconds=0, command="") == msgspec.structs.replace(
        whole, seconds=0, command=""
    )


def test_runs_of_equal_trained_tensors_share_their_reference(
    checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    work = ["--work", str(tmp_path / "work")]
    assert convert(checkpoint, text, tmp_path / "fit", *work, "--start", "fit") == 0
    stamps = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").iterdir()}
    assert convert(checkpoint, text, tmp_path / "copy", *work, "--start", "copy") == 0
    later = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").iterdir()}
    assert all(later[name] == stamp for name, stamp in stamps.items())
    assert [n for n in later if n not in stamps and n.startswith("reference")] == []
    fit, copy = record_of(tmp_path / "fit"), record_of(tmp_path / "copy")
    assert fit.reference == copy.reference
    assert fit.reference_losses == copy.reference_losses
    assert fit.converted_losses != copy.converted_losses


def test_no_steps_means_no_training(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert convert(checkpoint, text, out, "--start", "copy", steps=0) == 0
    record = record_of(out)
    assert record.reference == record.stock and record.converted == record.untrained
    assert record.difference == record.displacement != 0


@pytest.mark.parametrize("half_layers, held_out", [("3", (1,)), ("5", (1, 2))])
def test_deeper_reads_with_what_cannot_reach_held_out(
    checkpoint: Path, text: Path, tmp_path: Path, half_layers: str, held_out: tuple[int, ...]
) -> None:
    out = tmp_path / "run"
    held = ",".join(map(str, held_out))
    more = ["--half-layers", half_layers, "--hold-out", held]
    assert convert(checkpoint, text, out, *more) == 0
    before, after = queries(checkpoint), queries(out / "model")
    changed = {int(n.split(".")[2]) for n in after if not torch.equal(after[n], before[n])}
    assert changed == set(range(1, LAYERS)) - set(held_out)
    assert load(str(out / "model")).decoder.wiring == Wiring(
        query=int(half_layers), held_out=held_out
    )


@pytest.mark.parametrize(
    "more, words",
    [
        (["--half-layers", "2"], "must be odd"),
        (["--half-layers", "9"], "too deep"),
        (["--half-layers", "7", "--hold-out", "none"], "too deep"),
        (["--hold-out", "9"], "layers 0 to 4"),
        (["--hold-out", "3-1"], "neither none nor layers"),
        (["--hold-out", "1-4"], "every layer is held out"),
        (["--window", "500"], "longer than the model's 128"),
        (["--window", "100", "--batch", "60"], "too short"),
        (["--score-windows", "1000"], "too short"),
        (["--learning-rate", "0"], "must be positive"),
    ],
)
def test_bad_input_gets_one_sentence(
    checkpoint: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    assert convert(checkpoint, text, tmp_path / "run", *more) == 2
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("afd-qfirst: ")]
    assert len(said) == 1 and words in said[0]
    assert not (tmp_path / "run" / "record.json").exists()


def test_a_converted_checkpoint_is_refused(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert convert(checkpoint, text, out, steps=1) == 0
    assert convert(out / "model", text, tmp_path / "again") == 2
    assert "converted already" in capsys.readouterr().err
    # Transformers would run the ordinary wiring, so it must not take it for one.
    with pytest.raises(ValueError, match="afd_qfirst"):
        AutoModelForCausalLM.from_pretrained(out / "model")


def test_a_model_without_separate_projections_is_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8}))
    assert convert(tmp_path, text, tmp_path / "run") == 2
    assert "separate query, key and value" in capsys.readouterr().err
