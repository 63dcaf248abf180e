"""The codec of control.py against one MessagePack map per request and step, on the same step."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from afd_sched.ints import pack_int32, pack_int64, unpack_int32
from afd_sched.messages import StepPlan, StepResult, ToCoordinator, Tokens

_ROUNDS = 200


def cpu_us(call: Callable[[], object], rounds: int) -> float:
    """Median CPU time of a call in this thread, microseconds."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return float(np.median(times)) * 1e6


def codec_cpu_us(ranks: int, batch: int) -> tuple[float, float]:
    """CPU of the coordinator's encoding and decoding in one steady step: ours, and the baseline's.

    Both encode what the workers need and what the front end gets, and decode what the workers
    return. The baseline encodes and decodes plain dictionaries, one per request, in one message
    each way, with the same library; building a request's dictionary is part of it.
    """
    encode = msgspec.msgpack.Encoder().encode
    random = np.random.default_rng(0)
    uids = np.arange(ranks * batch, dtype=np.int64)
    tokens = random.integers(0, 150_000, len(uids), np.int32)
    finished = np.zeros(len(uids), np.int8)
    by_rank = tokens.reshape(ranks, batch)
    # A sixteenth of the slots begins a page in each step.
    pages = [pack_int32(random.integers(0, 4096, (batch // 16, 2))) for _ in range(ranks)]
    results = [
        encode(StepResult(1, rank, pack_int32(by_rank[rank]), 1, 1, 1, 1)) for rank in range(ranks)
    ]
    decode = msgspec.msgpack.Decoder(ToCoordinator).decode

    def ours() -> None:
        for rank in range(ranks):
            encode(StepPlan(step=1, lanes=2, pages=pages[rank]))
        got = np.concatenate([unpack_int32(decode(result).tokens) for result in results])
        encode(Tokens(1, pack_int64(uids), pack_int32(got), finished.tobytes()))

    pairs = list(zip(uids.tolist(), tokens.tolist(), strict=True))
    returned = encode([{"uid": uid, "token": token} for uid, token in pairs])
    decode_any = msgspec.msgpack.Decoder().decode

    def baseline() -> None:
        encode(
            [
                {"uid": uid, "slot": uid % batch, "position": 4000, "token": token, "page": 17}
                for uid, token in pairs
            ]
        )
        encode(
            [
                {"uid": entry["uid"], "token": entry["token"], "finished": 0}
                for entry in decode_any(returned)
            ]
        )

    return cpu_us(ours, _ROUNDS), cpu_us(baseline, _ROUNDS // 10)
