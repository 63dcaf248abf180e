"""Where the coordinator listens: a private folder, or a TCP port that is bound before anybody is
told of it."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from afd.errors import ConfigError

_BACKLOG = 4096
_NAME, _PREFIX = "coordinator", "afd-"
_MOST_PARENT_BYTES = zmq.IPC_PATH_MAX_LEN - len(f"/{_PREFIX}12345678/{_NAME}")
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@dataclass(slots=True)
class Listener:
    """``endpoint`` as ZeroMQ writes it; ``fd`` is the bound socket, -1 where the coordinator binds
    a path by itself."""

    endpoint: str
    fd: int = -1

    @property
    def is_tcp(self) -> bool:
        """Whether peers may be on other machines, so that keys are needed."""
        return self.endpoint.startswith("tcp://")

    def close(self) -> None:
        """Gives up this process's end; may be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def socket_folder() -> Path:
    """A new folder that only this user can enter, for ``listen``'s path.

    The kernel bounds a socket's path, so under a temporary folder with a long name there is room
    for none; then the folder is in /tmp. Raises ConfigError if that cannot be either.
    """
    try:
        parent = tempfile.gettempdir()
        fits = len(os.fsencode(parent)) <= _MOST_PARENT_BYTES
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent if fits else "/tmp"))
    except OSError as error:
        raise ConfigError(
            f"no folder for the launch's socket: {error}; set TMPDIR to a folder whose path has at "
            f"most {_MOST_PARENT_BYTES} bytes and that can be written"
        ) from error


def _server(host: str) -> socket.socket:
    """On the first of the host's addresses that can be had; raises the last one's OSError."""
    addresses = [
        (family, address)
        for family, _, _, _, address in socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    ]
    # "localhost" is ::1 first also where IPv6 is off.
    for family, address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_server(address, family=family, backlog=_BACKLOG)
    family, address = addresses[-1]
    return socket.create_server(address, family=family, backlog=_BACKLOG)


def listen(host: str | None, folder: Path) -> Listener:
    """A path in ``folder`` without ``host``; else any free port of that address.

    ``host``: an IPv4 or IPv6 address or a name; 0.0.0.0 and :: listen everywhere. Raises
    ConfigError if this machine does not have it.
    """
    if host is None:
        return Listener(f"ipc://{folder / _NAME}")
    try:
        server = _server(host)
    except (OSError, UnicodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "that is no name"
        raise ConfigError(
            f"--host {host}: cannot listen there: {reason}; give an address of this machine"
        ) from error
    server.setblocking(False)
    bound, port = server.getsockname()[:2]
    # Everywhere is no place to connect to.
    named = _LOOPBACK[server.family] if bound in ("0.0.0.0", "::") else bound
    if server.family == socket.AF_INET6:
        named = f"[{named}]"
    return Listener(f"tcp://{named}:{port}", server.detach())
