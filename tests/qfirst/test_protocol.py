"""The decode protocol: a plain run's tokens, from two sides that share next to nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afd.qfirst.block import Decoder, greedy
from afd.qfirst.cache import ShardedCache
from afd.qfirst.errors import WiringError
from afd.qfirst.protocol import CacheSide, DirectLink, Pool, Reply, Request, generate
from afd.qfirst.protocol_paired import PairedPool, PureSweeper
from afd.qfirst.stages import Stage, program
from afd.qfirst.wiring import FAMILY_A, FAMILY_B, Wiring, wiring
from tests.qfirst.conftest import GROUPED, random_decoder

PROMPT = [5, 81, 3, 44, 9]
TOKENS = 12
CONVERTED = {"converted": Wiring(query=1, held_out=(1,)), "deeper": Wiring(query=3, held_out=(1,))}
WIRINGS = {arm: wiring(arm) for arm in FAMILY_A + FAMILY_B} | CONVERTED
POOLABLE = [name for name in WIRINGS if name not in ("shared_query", "deeper")]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", WIRINGS)
def test_tokens_equal_a_plain_run(name: str, shards: int, decoder: Decoder) -> None:
    rewired = decoder.rewired(WIRINGS[name])
    side = CacheSide(rewired, DirectLink(Pool(rewired)))
    made = generate(side, Request(4, shards), PROMPT, TOKENS)
    assert made == greedy(rewired, PROMPT, TOKENS)
    assert len(set(made)) > 3


@pytest.mark.parametrize("name", POOLABLE)
def test_tokens_equal_a_plain_run_with_the_pair_pooled(name: str, decoder: Decoder) -> None:
    rewired = decoder.rewired(WIRINGS[name])
    side = PureSweeper(rewired.config, PairedPool(rewired))
    assert generate(side, Request(4, 2), PROMPT, TOKENS) == greedy(rewired, PROMPT, TOKENS)


def test_a_query_from_before_the_call_cannot_be_pooled(decoder: Decoder) -> None:
    for name in set(WIRINGS) - set(POOLABLE):
        with pytest.raises(WiringError, match="keep the query projection"):
            PairedPool(decoder.rewired(WIRINGS[name]))
    with pytest.raises(WiringError, match="key or value is read before the call"):
        program(Wiring(key=3), 4)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.differing_executors])
@given(owners=st.lists(st.integers(0, 4), min_size=17, max_size=17))
def test_the_cache_may_be_split_anywhere(owners: list[int]) -> None:
    decoder = random_decoder(GROUPED).rewired(wiring("early_q"))
    side = CacheSide(decoder, DirectLink(Pool(decoder)))
    request = Request(4, 5, owners.__getitem__)
    assert generate(side, request, PROMPT, TOKENS) == greedy(decoder, PROMPT, TOKENS)
    assert request.cache.positions(2) == [owners.count(n) for n in range(5)]


def test_requests_of_different_lengths_share_a_wave(decoder: Decoder) -> None:
    rewired = decoder.rewired(wiring("shifted"))
    side = CacheSide(rewired, DirectLink(Pool(rewired)))
    prompts = [[7], [8, 1, 2, 3], [9, 9]]
    requests = [Request(4, 2) for _ in prompts]
    with torch.no_grad():
        for request, prompt in zip(requests, prompts, strict=True):
            for token in prompt[:-1]:
                side.step([request], [token])
        logits = side.step(requests, [prompt[-1] for prompt in prompts])
        for row, prompt in zip(logits, prompts, strict=True):
            torch.testing.assert_close(
                row, rewired(torch.tensor([prompt]))[0, -1], atol=1e-4, rtol=0
            )


@dataclass
class RecordingLink:
    """Passes calls on, and writes down what happens in which order and what crosses."""

    pool: Callable[[], Pool]
    events: list[tuple[str, int]] = field(default_factory=list)
    crossed: set[int] = field(default_factory=set)

    def send(self, stage: Stage, u: torch.Tensor) -> Callable[[], Reply]:
        self.events.append(("sent", stage.attention))
        self.crossed.add(u.numel())

        def receive() -> Reply:
            self.events.append(("computed", stage.attention))
            return self.pool().call(stage, u)

        return receive

    def feed(self, ffn: int, u: torch.Tensor) -> torch.Tensor:
        self.crossed.add(u.numel())
        return self.pool().feed(ffn, u)


def run_recorded(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, pool: Callable[[], Pool] | None = None
) -> tuple[RecordingLink, list[int]]:
    one = Pool(decoder)
    link = RecordingLink(pool or (lambda: one))
    plain = ShardedCache.sweep

    def recorded(self: ShardedCache, layer: int, *rest: object) -> object:
        link.events.append(("swept", layer))
        return plain(self, layer, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardedCache, "sweep", recorded)
    made = generate(CacheSide(decoder, link), Request(4, 2), PROMPT, TOKENS)
    monkeypatch.undo()
    return link, made


@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("early_q", (0, 1, 2, 3)),
        ("parallel", (0, 1, 2, 3)),
        ("shifted", (0, 1, 2, 3)),
        # Layer 0 reads the embedding under any attention-first wiring.
        ("standard", (0,)),
        ("converted", (0, 2, 3)),
        ("early_k", ()),
        ("swapped", ()),
    ],
)
def test_an_early_query_never_waits_for_the_call_and_a_late_one_does(
    name: str, early: tuple[int, ...], decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _ = run_recorded(decoder.rewired(WIRINGS[name]), monkeypatch)
    for layer in range(4):
        order = [event for event, at in link.events[:12] if at == layer]
        # Swept while the pool has computed nothing of the call: it can have read nothing of it.
        wanted = ["sent", "swept", "computed"] if layer in early else ["sent", "computed", "swept"]
        assert order == wanted
    assert link.crossed == {48}, "one residual row a call crosses towards the pool"


def test_a_new_pool_at_every_call_makes_the_same_tokens(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewired = decoder.rewired(wiring("early_q"))
    _, made = run_recorded(rewired, monkeypatch, pool=lambda: Pool(rewired))
    assert made == greedy(rewired, PROMPT, TOKENS)


def test_the_pool_holds_nothing_between_calls(decoder: Decoder) -> None:
    pool = Pool(decoder.rewired(wiring("early_q")))
    stage = program(wiring("early_q"), 4).stages[1]

    u = torch.randn(1, 1, 48)
    with torch.no_grad():
        reply = pool.call(stage, u)
    first, again = [x.clone() for x in reply], u.clone()
    gone = [weakref.ref(x) for x in (u, *reply)]
    del u, reply
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
    with torch.no_grad():
        pool.call(stage, torch.randn(1, 1, 48))
        assert all(torch.equal(a, b) for a, b in zip(first, pool.call(stage, again), strict=True))


def test_each_side_needs_its_own_weights_only() -> None:
    """The other side's weights are NaN: a read of one would spread into every token."""
    whole = random_decoder(GROUPED).rewired(wiring("shifted"))
    theirs = ("mlp", "k_proj", "v_proj", "post_attention_layernorm")
    cache_side, pool = random_decoder(GROUPED), random_decoder(GROUPED)
    with torch.no_grad():
        for name, weight in cache_side.named_parameters():
            if any(part in name for part in theirs):
                weight.fill_(torch.nan)
        for name, weight in pool.named_parameters():
            if not any(part in name for part in (*theirs, "input_layernorm")):
                weight.fill_(torch.nan)
    side = CacheSide(cache_side.rewired(whole.wiring), DirectLink(Pool(pool.rewired(whole.wiring))))
    assert generate(side, Request(4), PROMPT, TOKENS) == greedy(whole, PROMPT, TOKENS)


def test_a_sweeper_holds_no_weight_at_all(decoder: Decoder) -> None:
    side = PureSweeper(decoder.config, PairedPool(decoder))
    own = {name: value for name, value in vars(side).items() if name != "_pool"}
    queue, tensors = list(own.values()), 0
    while queue:
        thing = queue.pop()
        tensors += isinstance(thing, torch.Tensor)
        queue += list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    assert tensors == 0
