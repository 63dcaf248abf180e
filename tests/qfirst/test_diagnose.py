"""Diagnostics: each measure against a direct computation, and the command on a small checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from afd.qfirst.block import Decoder
from afd.qfirst.cli import main
from afd.qfirst.diagnose import EARLY, MEAN, RANDOM, RandomError, diagnose
from afd.qfirst.errors import QFirstError
from afd.qfirst.queries import changed_queries, position_losses, query_statistics
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.spectra import overlap, spectra, truncated
from afd.qfirst.wiring import early_query
from afd.tools.stages import Stages
from tests.qfirst.conftest import GROUPED, random_decoder
from tests.tools.conftest import llama_folder  # noqa: F401  (a fixture)

IDS = torch.arange(3 * 40).view(3, 40) * 7 % 97
DATA = Windows(IDS, torch.full((3,), 160))


def queries_of(decoder: Decoder) -> list[torch.Tensor]:
    """[layers][n, T, width], by listening to the projection itself."""
    seen: list[list[torch.Tensor]] = [[] for _ in decoder.layers]
    with torch.no_grad():
        for window in IDS:
            handles = [
                layer.self_attn.q_proj.register_forward_hook(
                    lambda _, __, out, index=index: seen[index].append(out[0])
                )
                for index, layer in enumerate(decoder.layers)
            ]
            decoder(window[None])
            for handle in handles:
                handle.remove()
    return [torch.stack(rows) for rows in seen]


def test_query_statistics_are_those_of_the_projections_outputs(decoder: Decoder) -> None:
    early = early_query(4, 1)
    found = query_statistics(decoder, early, IDS)
    plain = queries_of(decoder)
    every = torch.stack([q.flatten(0, 1) for q in plain])
    for layer, q in zip(found.layers, every, strict=True):
        assert layer.norm == pytest.approx(float(q.square().sum(1).mean().sqrt()), rel=1e-5)
        centred = q - q.mean(0)
        assert layer.spread == pytest.approx(float(centred.square().sum(1).mean().sqrt()), rel=1e-4)
        share = float(q.mean(0).square().sum() / q.square().sum(1).mean())
        assert layer.common_share == pytest.approx(share, rel=1e-3)
    torch.testing.assert_close(found.means, every.mean(1), atol=1e-5, rtol=1e-5)
    total = (every - every.mean((0, 1))).square().sum(2).mean()
    between = (every.mean(1) - every.mean((0, 1))).square().sum(1).mean()
    assert found.between_share == pytest.approx(float(between / total), rel=1e-3)

    # Along the ordinary stream only the first moved layer's early query is the rewired model's own.
    moved = queries_of(decoder.rewired(early))[1] - plain[1]
    torch.testing.assert_close(found.moves[1], moved.norm(dim=-1), atol=1e-4, rtol=1e-4)
    assert found.layers[0].displacement == 0


def test_costs_are_differences_of_bits_per_byte(decoder: Decoder) -> None:
    result = diagnose(decoder, DATA, rank=6, seed=2, stages=Stages())

    def bits(model: Decoder) -> float:
        with torch.no_grad():
            logits = model(IDS)[:, :-1]
        nats = functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten(), reduction="sum")
        return float(nats) / math.log(2) / 480

    base = bits(decoder)
    assert result.baseline == pytest.approx(base, rel=1e-5)
    early = decoder.rewired(early_query(4, 1))
    assert result.cost(EARLY) == pytest.approx(bits(early) - base, abs=1e-4)
    cut = truncated(decoder, ("v_proj",), 6)
    assert result.cost("W_v cut to rank 6") == pytest.approx(bits(cut) - base, abs=1e-4)
    means = [q.mean((0, 1)) for q in queries_of(decoder)]
    with changed_queries(decoder, lambda layer, q: means[layer].expand_as(q)):
        assert result.cost(MEAN) == pytest.approx(bits(decoder) - base, abs=1e-4)
    assert bits(decoder) == base, "the change must end with its block"
    assert result.cost(RANDOM) != 0

    plain, moved = (
        torch.stack([position_losses(model, window) for window in IDS])
        for model in (decoder, early)
    )
    # A lone cached position takes all the mass, whatever the query says.
    assert torch.equal(plain[:, 0], moved[:, 0])
    at = next(p for p in result.positions if p.first == 6)
    lost = (moved - plain)[:, 6:39].sum() / plain[:, 6:39].sum()
    assert (at.last, at.share) == (39, pytest.approx(float(lost), rel=1e-6))


def test_a_random_error_has_the_displacements_length(decoder: Decoder) -> None:
    moves = torch.rand(4, 3, 40)
    error = RandomError(moves, seed=1)
    for window in range(3):
        for layer in range(4):
            q = torch.randn(1, 40, decoder.config.query_width)
            moved = error(layer, q) - q
            torch.testing.assert_close(moved.norm(dim=-1)[0], moves[layer, window])


def test_spectra_and_truncation_of_known_matrices() -> None:
    decoder = random_decoder(GROUPED)
    basis = torch.linalg.qr(torch.randn(48, 48))[0]
    weight = decoder.layers[1].self_attn.q_proj.weight
    values = torch.tensor([4.0, 2.0, 2.0, 1.0] + [0.0] * 44)
    with torch.no_grad():
        weight.zero_()
        weight[:48] = torch.diag(values) @ basis
        decoder.layers[1].self_attn.k_proj.weight[:] = basis[2:3].expand(32, 48)
    found = next(s for s in spectra(decoder) if (s.layer, s.projection) == (1, "q_proj"))
    assert found.stable_rank == pytest.approx((16 + 4 + 4 + 1) / 16, rel=1e-5)
    assert found.directions_99 == 4
    kept = truncated(decoder, ("q_proj",), 3).layers[1].self_attn.q_proj.weight
    values[3] = 0
    torch.testing.assert_close(kept[:48], torch.diag(values) @ basis, atol=1e-5, rtol=0)
    assert torch.equal(decoder.layers[1].self_attn.q_proj.weight, weight)
    assert overlap(decoder, 1, "k_proj", "q_proj", 3) == pytest.approx((1, 3 / 48), abs=1e-5)
    assert overlap(decoder, 1, "k_proj", "q_proj", 1)[0] == pytest.approx(0, abs=1e-5)


def test_a_converted_checkpoint_is_refused(decoder: Decoder) -> None:
    with pytest.raises(QFirstError, match="converted already"):
        diagnose(decoder.rewired(early_query(4, 1)), DATA, 6, 0, Stages())


def test_the_command_on_a_folder(
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(f"w{5 + n * n % 155}" for n in range(600)))
    command = ["diagnose", "--model", str(llama_folder), "--corpus", str(corpus)]
    command += ["--windows", "2", "--window", "64", "--rank", "6"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "query replaced by its layer mean" in text and "1 to 1" in text
    pytest.importorskip("matplotlib", reason="drawing needs the extra `plan`")
    picture = tmp_path / "diagnosis.svg"
    assert main([*command, "--json", "--plot", str(picture)]) == 0
    got = json.loads(capsys.readouterr().out)
    assert {"name", "published", "ours"} <= set(got["rows"][0])
    assert len(got["layers"]) == 3 and len(got["spectra"]) == 9
    assert picture.read_text().count("<path") > 50
    for bad, words in (
        (["--windows", "40"], "too short"),
        (["--corpus", str(tmp_path / "missing.txt")], "cannot be read"),
        (["--plot", "x.pdf"], "suffix"),
        (["--rank", "0"], "--rank"),
    ):
        assert main([*command, *bad]) == 2
        assert words in capsys.readouterr().err.splitlines()[-1]
