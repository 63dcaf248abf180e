"""What a wiring is, told from its forward pass: its family, its depth, and its other bracketing."""

from __future__ import annotations

from enum import Enum

import torch

from afd.qfirst.block import Decoder
from afd.qfirst.errors import WiringError
from afd.qfirst.wiring import Order, Wiring


class Family(Enum):
    """How a block composes its attention A and its feed-forward M (Q-First, Section 8)."""

    ATTENTION_INTO_FFN = "S = (I + M)(I + A)"
    FFN_INTO_ATTENTION = "Q = (I + A)(I + M)"
    SUM = "P = I + A + M"


def classify(decoder: Decoder, ids: torch.Tensor, layer: int) -> Family:
    """Which half of ``layer`` consumes the other, by silencing each and watching the other.

    ids [T]. Nothing of the wiring is read: a decoder that says one thing and does another shows.
    Raises WiringError for the order that no decoder has, each consuming the other.
    """
    block = decoder.layers[layer]
    before = _contributions(decoder, ids, layer)
    ffn_uses_attention = not torch.equal(
        before[1], _contributions(decoder, ids, layer, silent=block.self_attn.o_proj)[1]
    )
    attention_uses_ffn = not torch.equal(
        before[0], _contributions(decoder, ids, layer, silent=block.mlp.down_proj)[0]
    )
    if ffn_uses_attention and attention_uses_ffn:
        raise WiringError(f"layer {layer} is no layer: each half consumes the other")
    if ffn_uses_attention:
        return Family.ATTENTION_INTO_FFN
    return Family.FFN_INTO_ATTENTION if attention_uses_ffn else Family.SUM


def _contributions(
    decoder: Decoder, ids: torch.Tensor, layer: int, silent: torch.nn.Module | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layer's attention and its feed-forward compute, while ``silent`` gives zeros."""
    block = decoder.layers[layer]
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str) -> torch.utils.hooks.RemovableHandle:
        module = {"attention": block.self_attn.o_proj, "ffn": block.mlp.down_proj}[name]

        def hook(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
            seen[name] = output
            return torch.zeros_like(output) if module is silent else output

        return module.register_forward_hook(hook)

    handles = [watch("attention"), watch("ffn")]
    try:
        with torch.no_grad():
            decoder.states(decoder.embed_tokens(ids[None]))
    finally:
        for handle in handles:
            handle.remove()
    return seen["attention"], seen["ffn"]


def serial_depth(wiring: Wiring, layers: int) -> int:
    """Half-layers on the longest chain of dependencies: 2 L if they compose, L if they sum."""
    depth = [0]
    for layer in range(layers):
        for half in range(2):
            if half == (wiring.order is Order.FFN_FIRST):
                reads = list(wiring.states(layer))
            else:
                reads = [len(depth) - 1]
            # A state is the sum of all contributions before it.
            depth.append(max(depth[-1], 1 + max(depth[r] for r in reads)))
    return depth[-1]


def inner_stack(decoder: Decoder) -> Decoder:
    """The L - 1 feed-forward-first blocks inside an attention-first stack of L layers.

    Block i is the feed-forward of layer i with the attention of layer i + 1 and reads where that
    attention read; weights are shared. This is S_L = (I + M_L) Q_(L-1) (I + A_1) made by hand.
    Raises WiringError for reads that leave the inner stack.
    """
    wiring, config = decoder.wiring, decoder.config
    reads = (wiring.query, wiring.key, wiring.value)
    if wiring.order is not Order.ATTENTION_FIRST or any(r not in (0, 1) for r in reads):
        raise WiringError("only an attention-first stack that reads at most one half-layer back "
                          "has feed-forward-first blocks inside")  # fmt: skip
    inside = Wiring(
        Order.FFN_FIRST, *reads, held_out=tuple(n - 1 for n in wiring.held_out if n > 0)
    )
    with torch.device("meta"):
        inner = Decoder(type(config)(**{**vars(config), "layers": config.layers - 1}), inside)
    for index, block in enumerate(inner.layers):
        behind, ahead = decoder.layers[index], decoder.layers[index + 1]
        block.input_layernorm, block.self_attn = ahead.input_layernorm, ahead.self_attn
        block.post_attention_layernorm = behind.post_attention_layernorm
        block.mlp = behind.mlp
    inner.embed_tokens, inner.norm = decoder.embed_tokens, decoder.norm
    if not config.tied:
        inner.lm_head = decoder.lm_head
    return inner
