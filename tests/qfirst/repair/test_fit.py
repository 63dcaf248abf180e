"""The closed-form start against an independent least-squares solver."""

from __future__ import annotations

import numpy as np
import torch

from afd.qfirst.block import Decoder
from afd.qfirst.repair.attention import Backend
from afd.qfirst.repair.corpus import Windows
from afd.qfirst.repair.fit import fitted_queries
from afd.qfirst.wiring import early_query


def test_no_linear_query_of_the_early_stream_is_nearer(decoder: Decoder) -> None:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(decoder.config.vocab, (40, 24), generator=generator)
    data = Windows(ids, torch.full((40,), 23))
    wiring = early_query(decoder.config.layers, 1)
    fit = fitted_queries(decoder, wiring, data, Backend.FUSED, lambda: None)
    assert sorted(fit) == [f"layers.{n}.self_attn.q_proj.weight" for n in (1, 2, 3)]
    with torch.no_grad():
        points = decoder.states(decoder.embed_tokens(ids))
        for n in (1, 2, 3):
            layer = decoder.layers[n]
            early = layer.input_layernorm(points[2 * n - 1]).flatten(0, 1).numpy()
            late = layer.input_layernorm(points[2 * n])
            wanted = layer.self_attn.q_proj(late).flatten(0, 1).numpy()
            best, *_ = np.linalg.lstsq(early, wanted, rcond=None)
            ours = fit[f"layers.{n}.self_attn.q_proj.weight"].numpy().T
            errors = [
                float(np.square(early @ w - wanted).sum())
                for w in (best, ours, layer.self_attn.q_proj.weight.numpy().T)
            ]
            assert errors[0] <= errors[1] * (1 + 1e-6) < errors[2]
            assert errors[1] <= errors[0] * 1.001
