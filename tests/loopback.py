"""Which loopback addresses this machine has: containers often have no IPv6."""

from __future__ import annotations

import socket


def _can_listen(address: str, family: socket.AddressFamily) -> bool:
    try:
        socket.create_server((address, 0), family=family).close()
    except OSError:
        return False
    return True


LOOPBACKS = ["127.0.0.1", *(["::1"] if _can_listen("::1", socket.AF_INET6) else [])]
