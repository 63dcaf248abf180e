"""What was refused: counted, and logged without letting a flood of it fill the log."""

from __future__ import annotations

import logging
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_log = logging.getLogger(__name__)
_LOGGED_ONE_BY_ONE = 16

_REASONS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not of this launch",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not speak this launch's protocol",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it left during the handshake",
}
_COUNTED = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Refusals:
    """A counter; the first few are logged, then each time their number doubles."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0

    def add(self, why: object, *arguments: object) -> None:
        """One more; ``why`` is a logging format."""
        self.count += 1
        if self.count <= _LOGGED_ONE_BY_ONE or self.count & (self.count - 1) == 0:
            _log.warning(f"refused {self._what} %d: {why}", self.count, *arguments)


class ConnectionMonitor:
    """Counts a listening socket's connections by how they ended; ``socket`` wakes a poller.

    ``refused`` never finished the handshake. ``lost`` did and then ended: the peer went, or sent a
    message above the socket's limit. libzmq does not say which connection an event is about, so a
    connection that is lost while another is shaking hands may count as refused.
    """

    def __init__(self, listening: zmq.Socket[bytes]) -> None:
        watched = _COUNTED
        for event in _REASONS:
            watched |= event
        self._listening = listening
        self.socket: zmq.Socket[Any] = listening.get_monitor_socket(watched)
        self._accepted = self._welcomed = self._ended = 0

    @property
    def refused(self) -> int:
        """Connections that ended without a finished handshake."""
        return min(self._ended, self._accepted - self._welcomed)

    @property
    def lost(self) -> int:
        """Connections that ended after one."""
        return self._ended - self.refused

    def look(self) -> None:
        """Takes in what has happened."""
        while self.socket.poll(0):
            event = recv_monitor_message(self.socket)["event"]
            if event == zmq.EVENT_ACCEPTED:
                self._accepted += 1
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._welcomed += 1
            elif event == zmq.EVENT_DISCONNECTED:
                lost, self._ended = self.lost, self._ended + 1
                # A peer that was welcome and went is named elsewhere, if it matters.
                level = logging.INFO if self.lost > lost else logging.WARNING
                self._log(level, f"a connection ended; {self.refused} refused, {self.lost} lost")
            else:
                self._log(logging.WARNING, f"a stranger is refused: {_REASONS[event]}")

    def _log(self, level: int, sentence: str) -> None:
        if self._ended <= _LOGGED_ONE_BY_ONE or self._ended & (self._ended - 1) == 0:
            _log.log(level, sentence)

    def close(self) -> None:
        """Stops watching."""
        self._listening.disable_monitor()
        self.socket.close(0)
