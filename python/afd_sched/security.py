"""Who may speak: CURVE keys of one launch, and the gate that asks for them (ZAP, ZeroMQ RFC 27).

The launcher makes a key pair for the coordinator and for each peer and hands every process its own
over that process's standard input. A peer's key opens the door under that peer's name only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"


class PeerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's key pair and the coordinator's public key; Z85 text of 40 characters each."""

    public: str
    secret: str
    coordinator: str

    def __repr__(self) -> str:
        return f"PeerKeys(public={self.public!r})"

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Makes ``socket`` speak CURVE as this peer, to this coordinator only."""
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.encode()
        socket.curve_serverkey = self.coordinator.encode()


class CoordinatorKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator's key pair, and the peers' public keys with the name that each opens."""

    public: str
    secret: str
    peers: dict[str, str]

    def __repr__(self) -> str:
        return f"CoordinatorKeys(public={self.public!r}, peers={len(self.peers)})"


def launch_keys(peers: Iterable[bytes]) -> tuple[CoordinatorKeys, dict[bytes, PeerKeys]]:
    """Fresh keys for a coordinator and for each named peer."""
    public, secret = _pair()
    keys: dict[bytes, PeerKeys] = {}
    for name in peers:
        own, hidden = _pair()
        keys[name] = PeerKeys(public=own, secret=hidden, coordinator=public)
    names = {key.public: name.decode() for name, key in keys.items()}
    return CoordinatorKeys(public=public, secret=secret, peers=names), keys


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class Gate:
    """Answers libzmq's question whether a key may connect; ``socket`` is readable when it asks.

    To be opened before the protected socket: without a gate libzmq lets every key in.
    """

    def __init__(self, context: zmq.Context[Any], keys: CoordinatorKeys) -> None:
        self._names = {z85.decode(key): name.encode() for key, name in keys.peers.items()}
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answers every question that is here."""
        while self.socket.poll(0):
            _, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            key = credentials[0] if mechanism == b"CURVE" else b""
            name = self._names.get(key)
            status, text = (b"400", b"unknown key") if name is None else (b"200", b"")
            self.socket.send_multipart([_ZAP_VERSION, request, status, text, name or b"", b""])

    @staticmethod
    def name_of(frame: zmq.Frame) -> bytes:
        """The name of the key that a frame came under; empty if it came under none."""
        try:
            name = frame.get("User-Id")
        except zmq.ZMQError:
            return b""
        return name.encode() if isinstance(name, str) else b""

    def close(self) -> None:
        """Nobody can connect any more."""
        self.socket.close()
