"""ZMQ between the coordinator (ROUTER) and everybody else (DEALER).

On one machine over ipc in a private folder; over TCP always under CURVE (``security.py``). What a
stranger sends, or nobody can decode, is counted, logged and dropped; the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from afd_sched.messages import Message, ToCoordinator, ToFrontend, ToWorker
from afd_sched.refusals import ConnectionMonitor, Refusals
from afd_sched.security import CoordinatorKeys, Gate, PeerKeys

_log = logging.getLogger(__name__)

FRONTEND = b"frontend"
_LINGER_MS = 1000
# To a peer: a plan may carry the prompts of a whole batch. To the coordinator: one prompt.
_MAX_MESSAGE_BYTES = 256 * 2**20
_MAX_REQUEST_BYTES = 64 * 2**20
# A worker's own messages are short: 256 Ki sampled tokens.
_MAX_RESULT_BYTES = 2**20
_MAX_HANDSHAKE_MS = 10_000
# A rack's ranks connect at once.
_BACKLOG = 4096
# Plain numbers: an enumeration's cost as much as the call.
_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.NOBLOCK)

T = TypeVar("T")


@cache
def worker_identity(rank: int) -> bytes:
    """The address of a worker at the coordinator."""
    return b"rank-%d" % rank


def _socket(
    context: zmq.Context[Any], kind: int, endpoint: str, limit_bytes: int
) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, limit_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _MAX_HANDSHAKE_MS)
    # Plans and tokens must never be dropped because a peer is slow.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    return socket


class OpenTcpError(Exception):
    """A TCP endpoint without keys: anybody could steer the run."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"{endpoint} needs keys; see afd_sched.security.launch_keys")


def _check_keys(endpoint: str, keys: object) -> None:
    if keys is None and not endpoint.startswith("ipc://"):
        raise OpenTcpError(endpoint)


class _Dealer(Generic[T]):
    """One peer's end; ``socket`` may be polled together with other descriptors."""

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        incoming: Any,
        keys: PeerKeys | None = None,
        shared: zmq.Context[Any] | None = None,
    ) -> None:
        _check_keys(endpoint, keys)
        self._own_context = shared is None
        self._context: zmq.Context[Any] = zmq.Context() if shared is None else shared
        self.socket = _socket(self._context, zmq.DEALER, endpoint, _MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        if keys is not None:
            keys.protect(self.socket)
        self.socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(incoming)

    def send(self, message: Message) -> None:
        """Queues a message; never blocks."""
        self.socket.send(self._encoder.encode(message))

    def recv(self, timeout_ms: int | None) -> T | None:
        """The next message; None after ``timeout_ms`` (None waits for ever)."""
        while self.socket.poll(timeout_ms):
            try:
                return self._decoder.decode(self.socket.recv())
            except msgspec.MsgspecError as error:
                _log.warning("dropped a malformed message: %s", error)
        return None

    def dismiss(self) -> None:
        """The other end has said that it listens no more: what is queued need not be sent."""
        self.socket.setsockopt(zmq.LINGER, 0)

    def close(self) -> None:
        """Sends what is queued, for at most a second, and closes."""
        self.socket.close()
        if self._own_context:
            self._context.term()


class WorkerLink(_Dealer[ToWorker]):
    """A worker's end; ranks that live in one process share a context."""

    def __init__(
        self,
        endpoint: str,
        rank: int,
        keys: PeerKeys | None = None,
        shared: zmq.Context[Any] | None = None,
    ) -> None:
        self.rank = rank
        super().__init__(endpoint, worker_identity(rank), ToWorker, keys, shared)


class FrontendLink(_Dealer[ToFrontend]):
    """The front end's end."""

    def __init__(self, endpoint: str, keys: PeerKeys | None = None) -> None:
        super().__init__(endpoint, FRONTEND, ToFrontend, keys)


class CoordinatorLink:
    """The coordinator's end. ``messages`` and ``connections`` count what was refused.

    ``listening_fd``: a socket that the launcher has bound and listens on, or -1 to bind here. TCP
    without ``keys`` raises OpenTcpError.
    """

    def __init__(
        self, endpoint: str, keys: CoordinatorKeys | None = None, listening_fd: int = -1
    ) -> None:
        _check_keys(endpoint, keys)
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = None if keys is None else Gate(self._context, keys)
        self.socket = _socket(self._context, zmq.ROUTER, endpoint, _MAX_REQUEST_BYTES)
        self.socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        if keys is not None:
            self.socket.curve_server = True
            self.socket.curve_publickey = keys.public.encode()
            self.socket.curve_secretkey = keys.secret.encode()
        if listening_fd >= 0:
            self.socket.setsockopt(zmq.USE_FD, listening_fd)
        self.connections = ConnectionMonitor(self.socket)
        self.messages = Refusals("message")
        self.bytes_in = self.bytes_out = 0
        self.socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToCoordinator)
        self._last: tuple[Message | None, bytes] = (None, b"")
        # Without the look at options that nobody uses here, which costs as much as the call.
        self._put = super(zmq.Socket, self.socket).send

    def register(self, poller: zmq.Poller) -> None:
        """Has ``poller`` wake for messages and for connections."""
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.connections.socket, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)

    def attend(self, events: dict[Any, int]) -> None:
        """Deals with connections; ``events`` as the poller gave them."""
        if self._gate is not None and self._gate.socket in events:
            self._gate.answer()
        if self.connections.socket in events:
            self.connections.look()

    def values(self) -> dict[str, float]:
        """The counters as plain numbers."""
        return {
            "messages_refused": self.messages.count,
            "connections_refused": self.connections.refused,
            "connections_lost": self.connections.lost,
            "control_bytes_in": self.bytes_in,
            "control_bytes_out": self.bytes_out,
        }

    def send(self, identity: bytes, message: Message) -> None:
        """Queues a message to a peer that has connected."""
        self.put(identity, self.encode(message))

    def put(self, identity: bytes, payload: bytes) -> None:
        """Queues an encoded message."""
        self.bytes_out += len(payload)
        self._put(identity, _MORE)
        self._put(payload)

    def encode(self, message: Message) -> bytes:
        """Its bytes; one message to many peers is encoded once, if it is sent without another in
        between."""
        if message is not self._last[0]:
            self._last = message, self._encoder.encode(message)
        return self._last[1]

    def recv(self) -> tuple[bytes, Message] | None:
        """A message that is already here with its sender, or None."""
        while True:
            try:
                # Only a frame that is not copied knows whose key it came under.
                frames = [self.socket.recv(_AT_ONCE, copy=False)]
            except zmq.Again:
                return None
            while frames[-1].more:
                frames.append(self.socket.recv(copy=False))
            message = self._read(frames)
            if message is not None:
                return message

    def _read(self, frames: Sequence[zmq.Frame]) -> tuple[bytes, Message] | None:
        identity, payload = frames[0].bytes, frames[-1]
        if len(frames) != 2:
            self.messages.add("%d frames from %r, not one", len(frames) - 1, identity)
            return None
        if self._gate is not None and (name := Gate.name_of(payload)) != identity:
            self.messages.add("the key of %r spoke as %r", name, identity)
            return None
        length = len(payload)
        self.bytes_in += length
        if length > _MAX_RESULT_BYTES and identity != FRONTEND:
            self.messages.add("%d bytes from %r", length, identity)
            return None
        try:
            message: Message = self._decoder.decode(payload.buffer)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.messages.add("from %r: %s", identity, error)
            return None
        return identity, message

    def close(self) -> None:
        """Sends what is queued, for at most a second, and closes."""
        self.connections.close()
        self.socket.close()
        if self._gate is not None:
            self._gate.close()
        self._context.term()
