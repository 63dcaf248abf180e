"""Real checkpoints as decoders: a folder of safetensors, a GGUF file, or the packaged SmolLM2."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from safetensors.torch import save_file

from afd.checkpoint import Checkpoint as TensorFiles
from afd.qfirst.block import Decoder
from afd.qfirst.config import DecoderConfig, config_json, read_config
from afd.qfirst.errors import QFirstError
from afd.qfirst.wiring import Wiring
from afd.tools.default_model import require_torch
from afd.tools.folder import whole_folder
from afd.tools.source import default_gguf
from afd.tools.stages import Stages

PACKAGED = "smollm2"


@dataclass(frozen=True)
class LoadedModel:
    """A decoder in evaluation mode with its tokenizer; ``name`` is what the user asked for."""

    name: str
    decoder: Decoder
    tokenizer: Callable[[], Any]

    def encode(self, text: str) -> torch.Tensor:
        """Ids [tokens] of plain text, no special tokens added."""
        encoded = self.tokenizer()(text, add_special_tokens=False, verbose=False)
        return torch.tensor(encoded["input_ids"])


def load(
    model: str, dtype: torch.dtype = torch.float32, cache_dir: Path | None = None
) -> LoadedModel:
    """``smollm2`` (SmolLM2-135M-Instruct of a package), a .gguf file, or a checkpoint folder.

    A folder that says a wiring loads under it. Raises AfdError with one sentence.
    """
    if model == PACKAGED:
        require_torch()
        cache = cache_dir or platformdirs.user_cache_path("afd") / "models"
        return _from_gguf(model, default_gguf(cache, Stages()), dtype)
    path = Path(model)
    if path.is_file() and path.suffix == ".gguf":
        require_torch()
        return _from_gguf(model, path, dtype)
    if not (path / "config.json").is_file():
        raise QFirstError(
            f"{model} is neither {PACKAGED!r}, nor a .gguf file, nor a folder with a config.json"
        )
    return _from_folder(path, dtype)


def save(model: LoadedModel, decoder: Decoder, folder: Path) -> None:
    """Writes ``decoder``, its wiring and the model's tokenizer into a new folder, whole or not."""
    if folder.exists():
        raise QFirstError(f"{folder} exists already; choose a new folder")
    weights = {_stored_name(n): p.detach().contiguous() for n, p in decoder.named_parameters()}
    dtype = str(decoder.embed_tokens.weight.dtype).removeprefix("torch.")
    with whole_folder(folder) as target:
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
        values = config_json(decoder.config, decoder.wiring, dtype)
        (target / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        model.tokenizer().save_pretrained(target)


def _stored_name(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"


def _tokenizer(folder: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise QFirstError(
            f"{folder} has no tokenizer that can be read ({reason}); put the model's tokenizer "
            "files beside its config.json"
        ) from error


def _from_folder(folder: Path, dtype: torch.dtype) -> LoadedModel:
    config, wiring = read_config(folder / "config.json")
    files = TensorFiles(folder)

    def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        # A copy: the file is mapped read-only.
        stored = torch.from_numpy(files.weight(name, shape).copy())
        return stored.view(torch.bfloat16) if stored.dtype == torch.uint16 else stored

    def tokenizer() -> Any:
        return _tokenizer(folder, local_files_only=True)

    decoder = _assemble(config, wiring, tensor, dtype)
    biases = [n for n in _bias_names(config) if n in files]
    if biases:
        raise QFirstError(f"{folder} has {biases[0]}; decoders with biases are not supported")
    return LoadedModel(str(folder), decoder, tokenizer)


def _from_gguf(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    from afd.tools.gguf_model import load_gguf

    dense = load_gguf(path)
    shape = dense.shape
    config = DecoderConfig(
        vocab=shape.vocab, hidden=shape.hidden, layers=shape.layers, heads=shape.heads,
        kv_heads=shape.kv_heads, head_dim=shape.head_dim, ffn=shape.ffn, norm_eps=shape.norm_eps,
        rope_theta=shape.rope_theta, tied=shape.tied, max_positions=shape.max_positions,
    )  # fmt: skip

    def tokenizer() -> Any:
        return _tokenizer(path.parent, gguf_file=path.name)

    decoder = _assemble(config, Wiring(), lambda key, _: dense.weights[key], dtype)
    return LoadedModel(name, decoder, tokenizer)


def _assemble(
    config: DecoderConfig,
    wiring: Wiring,
    tensor: Callable[[str, tuple[int, ...]], torch.Tensor],
    dtype: torch.dtype,
) -> Decoder:
    with torch.device("meta"):
        decoder = Decoder(config, wiring)
    weights = {
        name: tensor(_stored_name(name), tuple(parameter.shape)).to(dtype)
        for name, parameter in decoder.named_parameters()
    }
    decoder.load_state_dict(weights, assign=True)
    decoder.eval()
    return decoder


def _bias_names(config: DecoderConfig) -> list[str]:
    return [
        f"model.layers.{layer}.self_attn.{part}_proj.bias"
        for layer in range(config.layers)
        for part in ("q", "k", "v", "o")
    ]
