"""ZMQ between the coordinator (ROUTER) and everybody else (DEALER), over ipc in a private folder.

A message that cannot be decoded is counted, logged and dropped; the run goes on.
"""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from afd_sched.messages import Message, ToCoordinator, ToFrontend, ToWorker

_log = logging.getLogger(__name__)

FRONTEND = b"frontend"
_LINGER_MS = 1000
_MAX_MESSAGE_BYTES = 256 * 2**20

T = TypeVar("T")


def worker_identity(rank: int) -> bytes:
    """The address of a worker at the coordinator."""
    return b"rank-%d" % rank


def _socket(context: zmq.Context[Any], kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    # Plans and tokens must never be dropped because a peer is slow.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket


class _Dealer(Generic[T]):
    """One peer's end; ``socket`` may be polled together with other descriptors."""

    def __init__(self, endpoint: str, identity: bytes, incoming: Any) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = _socket(self._context, zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity)
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

    def close(self) -> None:
        """Sends what is queued, for at most a second, and closes."""
        self.socket.close()
        self._context.term()


class WorkerLink(_Dealer[ToWorker]):
    """A worker's end."""

    def __init__(self, endpoint: str, rank: int) -> None:
        super().__init__(endpoint, worker_identity(rank), ToWorker)


class FrontendLink(_Dealer[ToFrontend]):
    """The front end's end."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, FRONTEND, ToFrontend)


class CoordinatorLink:
    """The coordinator's end; ``refused`` counts messages that could not be decoded."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = _socket(self._context, zmq.ROUTER)
        self.socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToCoordinator)
        self._last: tuple[Message | None, bytes] = (None, b"")
        self.refused = 0

    def send(self, identity: bytes, message: Message) -> None:
        """Queues a message to a peer that has connected."""
        payload = self.encode(message)
        self.socket.send(identity, zmq.SNDMORE)
        self.socket.send(payload)

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
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                identity, payload = frames
                message: Message = self._decoder.decode(payload)
                return identity, message
            except (ValueError, msgspec.MsgspecError) as error:
                self.refused += 1
                _log.warning("refused a message from %r: %s", frames[0], error)

    def close(self) -> None:
        """Sends what is queued, for at most a second, and closes."""
        self.socket.close()
        self._context.term()
