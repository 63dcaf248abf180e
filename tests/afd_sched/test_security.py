"""Over TCP only this launch's keys open the door, each under its own name; strangers count."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zmq

from afd.errors import ConfigError
from afd.launch.listen import listen
from afd_sched.links import CoordinatorLink, OpenTcpError, WorkerLink, worker_identity
from afd_sched.messages import Hello, Started, Stop
from afd_sched.security import Gate, PeerKeys, launch_keys
from tests.afd_sched.fleet import sequential
from tests.afd_sched.run_coordinator import CONTEXT_TOKENS, PATIENCE_MS, Fleet
from tests.loopback import LOOPBACKS


def _dealer(fleet: Fleet, keys: PeerKeys | None, identity: bytes = b"rank-0") -> zmq.Socket[bytes]:
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RECONNECT_IVL, -1)
    dealer.setsockopt(zmq.IPV6, 1)
    dealer.setsockopt(zmq.IDENTITY, identity)
    if keys is not None:
        keys.protect(dealer)
    dealer.connect(fleet.endpoint)
    return dealer


def _raw(fleet: Fleet, data: bytes) -> Callable[[], None]:
    host, port = fleet.endpoint.removeprefix("tcp://").rsplit(":", 1)
    connection = socket.create_connection((host.strip("[]"), int(port)))
    connection.sendall(data)
    connection.settimeout(PATIENCE_MS / 1000)
    return connection.close


def _serves(fleet: Fleet, uid: int) -> None:
    params = fleet.generate(uid, [5, 6 + uid], max_new_tokens=9, ignore_eos=True)
    assert fleet.collect({uid})[uid] == sequential([5, 6 + uid], params, CONTEXT_TOKENS)


def _wait(fleet: Fleet, name: str, at_least: int) -> dict[str, float]:
    while (values := fleet.stats())[name] < at_least:
        pass
    return values


@pytest.mark.parametrize("host", LOOPBACKS)
def test_strangers_are_refused_and_counted_and_the_run_goes_on(sockets: Path, host: str) -> None:
    listener = listen(host, sockets)
    with Fleet(sockets, listener=listener) as fleet:
        assert fleet.endpoint.startswith("tcp://[::1]:" if ":" in host else "tcp://127.0.0.1:")
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        other, others = launch_keys([b"rank-0"])
        mine = fleet.keys[b"rank-0"].coordinator
        stop = msgspec.msgpack.encode(Stop())
        strangers = [
            _dealer(fleet, None, b"frontend"),
            # A key of another launch, and one that knows this coordinator's public key.
            _dealer(fleet, others[b"rank-0"], b"frontend"),
            _dealer(fleet, msgspec.structs.replace(others[b"rank-0"], coordinator=mine)),
        ]
        for stranger in strangers:
            # One that has been shown the door already has nobody to send to.
            with suppress(zmq.Again):
                stranger.send(stop, zmq.NOBLOCK)
        closers = [
            _raw(fleet, b"GET / HTTP/1.1\r\nHost: afd\r\n\r\n" + bytes(100)),
            _raw(fleet, b""),
        ]
        for close in closers:
            close()
        _serves(fleet, 0)
        values = _wait(fleet, "connections_refused", len(strangers) + len(closers))
        assert values["connections_refused"] == len(strangers) + len(closers)
        assert values["connections_lost"] == values["messages_refused"] == 0
        for stranger in strangers:
            stranger.close()
        _serves(fleet, 1)
        assert other.public not in {key.coordinator for key in fleet.keys.values()}


def test_a_key_opens_the_door_under_its_own_name_only(sockets: Path) -> None:
    with Fleet(sockets, attention_ranks=1, listener=listen("127.0.0.1", sockets)) as fleet:
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        liar = _dealer(fleet, fleet.keys[worker_identity(0)], b"liar")
        liar.send(msgspec.msgpack.encode(Hello(1, "attention", 0, 1)))
        _serves(fleet, 0)
        assert _wait(fleet, "messages_refused", 1)["connections_refused"] == 0
        liar.close()


def test_too_long_a_message_costs_its_sender_the_connection_and_nobody_else(sockets: Path) -> None:
    with Fleet(sockets, attention_ranks=1, listener=listen("127.0.0.1", sockets)) as fleet:
        fleet.start_all()
        assert isinstance(fleet.receive(), Started)
        loud = _dealer(fleet, fleet.keys[worker_identity(0)], b"loud")
        loud.send(bytes(65 * 2**20))
        _serves(fleet, 0)
        assert _wait(fleet, "connections_lost", 1)["messages_refused"] == 0
        loud.close()
        # Under the socket's limit and above what a worker has to say: dropped, and counted.
        loud = _dealer(fleet, fleet.keys[worker_identity(0)], b"loud")
        loud.send(bytes(2**20 + 1))
        _wait(fleet, "messages_refused", 1)
        _serves(fleet, 1)
        loud.close()


def test_tcp_without_keys_is_an_error(sockets: Path) -> None:
    for open_link in (
        lambda: CoordinatorLink("tcp://127.0.0.1:*"),
        lambda: WorkerLink("tcp://127.0.0.1:1", 0),
    ):
        with pytest.raises(OpenTcpError, match="needs keys"):
            open_link()


def test_a_frame_that_came_under_no_key_has_nobodys_name() -> None:
    assert Gate.name_of(zmq.Frame(b"plan")) == b""


def test_keys_do_not_show_when_printed() -> None:
    coordinator, peers = launch_keys([b"rank-0", b"frontend"])
    printed = repr((coordinator, peers))
    for secret in (coordinator.secret, *(keys.secret for keys in peers.values())):
        assert secret not in printed
    assert len({keys.secret for keys in peers.values()}) == 2


def test_a_port_is_bound_before_it_is_announced_and_everywhere_is_announced_as_here(
    sockets: Path,
) -> None:
    for host, announced in (("0.0.0.0", "tcp://127.0.0.1:"), ("localhost", "tcp://")):
        listener = listen(host, sockets)
        assert listener.endpoint.startswith(announced)
        name, port = listener.endpoint.removeprefix("tcp://").rsplit(":", 1)
        socket.create_connection((name.strip("[]"), int(port)), timeout=5).close()
        listener.close()
        listener.close()


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "no-such-host.invalid", "2001:db8::1", "a..b", "a" * 64]
)
def test_an_address_that_is_not_ours_is_one_sentence(sockets: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}: cannot listen there"):
        listen(host, sockets)
