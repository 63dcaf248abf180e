"""The workers and the front end of control.py: slot tables behind real sockets, random tokens
instead of a model, and somebody who takes the tokens in.

python bench/control_peers.py ENDPOINT ATTENTION_RANKS FFN_RANKS BATCH
"""

from __future__ import annotations

import resource
import sys

import msgspec
import numpy as np
import zmq
from control_run import CONTEXT_LENGTH, PAGE_SIZE, pages_per_rank

from afd_sched.ints import pack_int32
from afd_sched.links import FRONTEND, worker_identity
from afd_sched.messages import (
    PROTOCOL_VERSION,
    FfnResult,
    Hello,
    Ready,
    StepPlan,
    StepResult,
    Stop,
    ToWorker,
)
from afd_sched.replica import SlotTable

VOCABULARY = 150_000


def serve(endpoint: str, attention_ranks: int, ffn_ranks: int, batch: int) -> None:
    """Answers every plan until Stop."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(ToWorker).decode
    tables = [SlotTable(batch, CONTEXT_LENGTH // PAGE_SIZE) for _ in range(attention_ranks)]
    random = np.random.default_rng(0)
    poller = zmq.Poller()
    rank_of: dict[zmq.Socket[bytes], int] = {}
    for rank in range(attention_ranks + ffn_ranks):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, worker_identity(rank))
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        role = "attention" if rank < attention_ranks else "ffn"
        socket.send(encode(Hello(PROTOCOL_VERSION, role, rank, 0)))
        socket.send(encode(Ready(rank, pages_per_rank(batch) if role == "attention" else 0)))
        poller.register(socket, zmq.POLLIN)
        rank_of[socket] = rank
    frontend = context.socket(zmq.DEALER)
    frontend.setsockopt(zmq.IDENTITY, FRONTEND)
    frontend.setsockopt(zmq.LINGER, 0)
    frontend.connect(endpoint)
    frontend.send(encode(Hello(PROTOCOL_VERSION, "frontend", -1, 0)))
    poller.register(frontend, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            if socket is frontend:
                frontend.recv()
                continue
            message = decode(socket.recv())
            rank = rank_of[socket]
            if isinstance(message, Stop):
                context.destroy(linger=0)
                return
            if isinstance(message, StepPlan):
                table = tables[rank]
                rows = len(table.apply(message).sample_rows)
                tokens = random.integers(2, VOCABULARY, rows, np.int32)
                table.record(tokens)
                result = StepResult(message.step, rank, pack_int32(tokens), 1, 1, 1, 1)
                socket.send(encode(result))
            else:
                socket.send(encode(FfnResult(message.step, rank, 1, 1)))


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:]))
