"""Decoders against Transformers, and the way to a folder and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from afd.errors import AfdError
from afd.qfirst.checkpoint import load, save
from afd.qfirst.errors import QFirstError
from afd.qfirst.wiring import early_query, wiring
from tests.tools.conftest import llama_folder  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(5)
    config = Qwen3Config(
        vocab_size=160, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("source", ["llama_folder", "qwen3_folder"])
def test_logits_are_bit_identical_to_transformers(
    source: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(source)
    ids = torch.arange(40)[None] * 7 % 160
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(load(str(folder), dtype).decoder(ids), theirs(ids).logits)


def test_a_rewired_decoder_comes_back_under_its_wiring_and_not_under_another(
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    model = load(str(llama_folder))
    ids = torch.arange(40)[None] * 7 % 160
    rewired = model.decoder.rewired(early_query(3, 1, held_out=(2,)))
    save(model, rewired, tmp_path / "new")
    back = load(str(tmp_path / "new"))
    assert back.decoder.wiring == rewired.wiring
    with torch.no_grad():
        assert torch.equal(back.decoder(ids), rewired(ids))
        assert not torch.equal(back.decoder(ids), model.decoder(ids))
    assert back.tokenizer()("w7 w9")["input_ids"] == [7, 9]
    with pytest.raises(ValueError, match="afd_qfirst"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "new")


def test_an_unmoved_decoder_is_saved_as_what_transformers_reads(
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    model = load(str(llama_folder))
    save(model, model.decoder, tmp_path / "same")
    ids = torch.arange(40)[None] * 7 % 160
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "same")
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, model.decoder(ids))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "separate query, key and value"),
        ({"model_type": "qwen3_moe"}, "llama, mistral, qwen3"),
        ({"model_type": "afd_qfirst"}, "must say its wiring"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    change: dict[str, object],
    words: str,
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    values = json.loads((llama_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    with pytest.raises(AfdError, match=words) as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "depth", "held_out", "words"),
    [(3, 2, (), "odd"), (3, 0, (), "odd"), (6, 3, (), "layer 1 of 6"), (2, 3, (1,), "too deep")],
)
def test_a_depth_that_cannot_be_read_is_refused(
    layers: int, depth: int, held_out: tuple[int, ...], words: str
) -> None:
    with pytest.raises(AfdError, match=words):
        early_query(layers, depth, held_out)


def test_an_unknown_arm_lists_the_known_ones() -> None:
    with pytest.raises(AfdError, match="standard.*parallel"):
        wiring("sideways")


def test_a_folder_without_a_tokenizer_is_one_sentence(
    llama_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(llama_folder / name, tmp_path / name)
    model = load(str(tmp_path))
    with pytest.raises(QFirstError, match="no tokenizer that can be read"):
        model.encode("w7")
