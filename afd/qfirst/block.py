"""The one decoder definition: a Llama-type stack whose read points are parameters.

Parameters carry Transformers' names below ``model.``. Shapes: B sequences, T positions, H query and
K key heads of D, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from afd.qfirst.config import DecoderConfig
from afd.qfirst.errors import WiringError
from afd.qfirst.wiring import Order, Wiring


class RmsNorm(nn.Module):
    """Root-mean-square norm; the statistics are float32 whatever the stream's dtype."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as ``x``; a float32 weight may serve a bfloat16 stream."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * scaled.to(x.dtype)).to(x.dtype)


class Rope:
    """Rotary tables for given positions: cos, sin [T, D] or [B, 1, T, D] (rotate-half)."""

    def __init__(self, positions: torch.Tensor, config: DecoderConfig, dtype: torch.dtype) -> None:
        """``positions``: integer [T] or [B, T]."""
        even = torch.arange(0, config.head_dim, 2, device=positions.device).float()
        inverse = 1.0 / config.rope_theta ** (even / config.head_dim)
        angles = positions.float()[..., None] * inverse
        angles = torch.cat((angles, angles), dim=-1)
        if positions.dim() == 2:
            angles = angles[:, None]
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, heads, T, D] turned by its positions."""
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-high, low), dim=-1) * self.sin


class Attention(nn.Module):
    """Projections with their rotation; what sweeps the keys is the caller's."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, query, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv, bias=False)
        self.o_proj = nn.Linear(query, config.hidden, bias=False)
        normed = config.qk_norm
        self.q_norm = RmsNorm(config.head_dim, config.norm_eps) if normed else nn.Identity()
        self.k_norm = RmsNorm(config.head_dim, config.norm_eps) if normed else nn.Identity()

    def query(self, normed: torch.Tensor, rope: Rope) -> torch.Tensor:
        """[B, T, C] already normalised → [B, H, T, D]."""
        return rope.rotate(self.project_query(normed))

    def key(self, normed: torch.Tensor, rope: Rope) -> torch.Tensor:
        """[B, T, C] already normalised → [B, K, T, D]."""
        return rope.rotate(self.project_key(normed))

    def project_query(self, normed: torch.Tensor) -> torch.Tensor:
        """The query before rotation: no position is needed for it."""
        return self.q_norm(self._heads(self.q_proj(normed)))

    def project_key(self, normed: torch.Tensor) -> torch.Tensor:
        """The key before rotation: no position is needed for it."""
        return self.k_norm(self._heads(self.k_proj(normed)))

    def value(self, normed: torch.Tensor) -> torch.Tensor:
        """[B, T, C] already normalised → [B, K, T, D]."""
        return self._heads(self.v_proj(normed))

    def output(self, mixed: torch.Tensor) -> torch.Tensor:
        """Attention vectors [B, H, T, D] → what is added to the stream, [B, T, C]."""
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """[B, T, C] already normalised → same shape."""
        return self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Layer(nn.Module):
    """One attention and one feed-forward with their norms; which runs first is the decoder's."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden, config.norm_eps)
        self.mlp = FeedForward(config)

    def query(self, state: torch.Tensor, rope: Rope) -> torch.Tensor:
        """[B, H, T, D] from any state of the stream, through this layer's own norm."""
        return self.self_attn.query(self.input_layernorm(state), rope)

    def key(self, state: torch.Tensor, rope: Rope) -> torch.Tensor:
        """[B, K, T, D] from the stream."""
        return self.self_attn.key(self.input_layernorm(state), rope)

    def value(self, state: torch.Tensor) -> torch.Tensor:
        """[B, K, T, D] from the stream."""
        return self.self_attn.value(self.input_layernorm(state))

    def attend(
        self, q_state: torch.Tensor, k_state: torch.Tensor, v_state: torch.Tensor, rope: Rope
    ) -> torch.Tensor:
        """Causal attention over the sequence: what it adds to the stream, [B, T, C].

        A state passed twice is the same tensor and is normalised once.
        """
        normed_q = self.input_layernorm(q_state)
        normed_k = normed_q if k_state is q_state else self.input_layernorm(k_state)
        normed_v = normed_k if v_state is k_state else self.input_layernorm(v_state)
        q, k = self.self_attn.query(normed_q, rope), self.self_attn.key(normed_k, rope)
        v = self.self_attn.value(normed_v)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.self_attn.output(mixed)

    def feed(self, state: torch.Tensor) -> torch.Tensor:
        """The feed-forward M(N2 state), [B, T, C]."""
        return self.mlp(self.post_attention_layernorm(state))


class Decoder(nn.Module):
    """Embedding, layers under a wiring, final norm, readout."""

    def __init__(self, config: DecoderConfig, wiring: Wiring | None = None) -> None:
        """Weights are torch's default initialisation. Raises WiringError for layers it lacks."""
        super().__init__()
        self.config = config
        self.wiring = wiring or Wiring()
        missing = [n for n in self.wiring.held_out if not 0 <= n < config.layers]
        if missing:
            raise WiringError(f"wiring holds layer {missing[0]} out of {config.layers} layers")
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.hidden, config.norm_eps)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [B, T] → logits [B, T, vocab]."""
        return self.readout(self.hidden(ids))

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [B, T] → the stream after the last layer, before the final norm, [B, T, C]."""
        return self.states(self.embed_tokens(ids))[-1]

    def states(self, embedded: torch.Tensor) -> list[torch.Tensor]:
        """All 2 * layers + 1 states of the stream, each [B, T, C], from the embedding on."""
        positions = torch.arange(embedded.shape[1], device=embedded.device)
        rope = Rope(positions, self.config, embedded.dtype)
        states = [embedded]
        for index, layer in enumerate(self.layers):
            if self.wiring.order is Order.FFN_FIRST:
                states.append(states[-1] + layer.feed(states[-1]))
            q, k, v = (states[i] for i in self.wiring.states(index))
            states.append(states[-1] + layer.attend(q, k, v, rope))
            if self.wiring.order is Order.ATTENTION_FIRST:
                states.append(states[-1] + layer.feed(states[-1]))
        return states

    def readout(self, stream: torch.Tensor) -> torch.Tensor:
        """Final norm and vocabulary projection: [..., C] → [..., vocab]."""
        weight = self.embed_tokens.weight if self.config.tied else self.lm_head.weight
        return functional.linear(self.norm(stream), weight)

    def rewired(self, wiring: Wiring) -> Decoder:
        """A decoder of another wiring that shares these weights."""
        with torch.device("meta"):
            other = Decoder(self.config, wiring)
        other.load_state_dict(dict(self.named_parameters()), assign=True)
        other.train(self.training)
        return other


def parameter_count(decoder: nn.Module) -> int:
    """Elements of all weights, a tied one once."""
    return sum(p.numel() for p in decoder.parameters())


def greedy(decoder: Decoder, prompt: Sequence[int], tokens: int) -> list[int]:
    """A plain run, without a cache: ``tokens`` ids after the prompt."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            stream = decoder.hidden(torch.tensor([ids]))[0, -1]
            ids.append(int(decoder.readout(stream).argmax()))
    return ids[len(prompt) :]
