"""Small random decoders; activations with a mean and a spread, as trained ones have."""

from __future__ import annotations

import pytest
import torch

from afd.qfirst.block import Decoder
from afd.qfirst.config import DecoderConfig

GROUPED = DecoderConfig(
    vocab=97, hidden=48, layers=4, heads=6, kv_heads=2, head_dim=16, ffn=80, norm_eps=1e-5,
    tied=False,
)  # fmt: skip
NORMED = DecoderConfig(
    vocab=97, hidden=48, layers=4, heads=4, kv_heads=4, head_dim=16, ffn=80, qk_norm=True,
    tied=False,
)  # fmt: skip


def random_decoder(config: DecoderConfig, seed: int = 3) -> Decoder:
    """All weights drawn, norms too, so that leaving any of them out shows."""
    decoder = Decoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(1 + 0.2 * noise)
            elif "embed" in name:
                weight.copy_(noise)
            else:
                weight.copy_(1.3 * noise / weight.shape[1] ** 0.5)
    return decoder.eval()


@pytest.fixture(params=[GROUPED, NORMED], ids=["grouped", "qk-norm"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return random_decoder(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
