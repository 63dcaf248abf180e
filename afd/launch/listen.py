"""Where the coordinator listens: a private folder, or a TCP port that is bound before anybody is
told of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from afd.errors import ConfigError

_BACKLOG = 4096
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


def listen(host: str | None, folder: Path) -> Listener:
    """A path in ``folder`` without ``host``; else any free port of that address.

    ``host``: an IPv4 or IPv6 address or a name; 0.0.0.0 and :: listen everywhere. Raises
    ConfigError if this machine does not have it.
    """
    if host is None:
        return Listener(f"ipc://{folder}/coordinator")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"--host {host}: cannot listen there: {error.strerror or error}; give an address of "
            "this machine"
        ) from error
    server.setblocking(False)
    bound, port = server.getsockname()[:2]
    # Everywhere is no place to connect to.
    named = _LOOPBACK[family] if bound in ("0.0.0.0", "::") else bound
    if family == socket.AF_INET6:
        named = f"[{named}]"
    return Listener(f"tcp://{named}:{port}", server.detach())
