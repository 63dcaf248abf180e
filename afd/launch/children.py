"""Child processes: started with their configuration on standard input, watched, and ended.

No child outlives this process (see worker/lifeline.py), and none needs a ``__main__`` guard.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from afd.errors import LaunchError
from afd.launch.signals import undisturbed

_LIFELINE_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Child:
    """A started process; ``rank`` is None for the coordinator; ``pidfd`` is readable once it
    ended."""

    name: str
    rank: int | None
    process: subprocess.Popen[bytes]
    pidfd: int

    def how_it_ended(self) -> str:
        """ "was killed by signal 9" or "exited with status 1"; call only after it ended."""
        code = self.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def wait(children: Sequence[Child], grace_s: float) -> None:
    """Until all of them have ended, for at most ``grace_s``."""
    deadline = time.monotonic() + grace_s
    for child in children:
        # Popen.wait polls; the descriptor wakes us at once.
        poller = select.poll()
        poller.register(child.pidfd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)


class Children:
    """The processes of one launch, and the pipe whose end of file means that we are gone."""

    def __init__(self) -> None:
        self.lifeline_fd, self._lifeline_writer = os.pipe()
        self._children: list[Child] = []

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def start(
        self, name: str, module: str, config: bytes, fds: Sequence[int], rank: int | None = None
    ) -> Child:
        """Starts ``python -m module``; ``fds`` are inherited under the same numbers. A process that
        Ctrl-C left without its whole config would be nobody's, so Ctrl-C waits for it."""
        with undisturbed():
            return self._start(name, module, config, fds, rank)

    def _start(
        self, name: str, module: str, config: bytes, fds: Sequence[int], rank: int | None
    ) -> Child:
        # What is importable here must be importable there, however this program was started.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[self.lifeline_fd, *fds],
                env=environment,
                process_group=0,
            )
            with process.stdin as stdin:  # type: ignore[union-attr]  # PIPE was asked for above
                stdin.write(config)
        except OSError as error:
            raise LaunchError(f"{name} cannot be started: {error}") from error
        child = Child(name, rank, process, os.pidfd_open(process.pid))
        self._children.append(child)
        return child

    def ended(self) -> list[Child]:
        """Children that are no longer running."""
        if not self._children:
            return []
        poller = select.poll()
        for child in self._children:
            poller.register(child.pidfd, select.POLLIN)
        over = {fd for fd, _ in poller.poll(0)}
        return [child for child in self._children if child.pidfd in over]

    def end(self, grace_s: float) -> None:
        """Waits up to ``grace_s`` for all to end by themselves; then cuts the lifeline, which ends
        any that still listens, and kills what is left."""
        wait(self._children, grace_s)
        if self._lifeline_writer >= 0:
            os.close(self._lifeline_writer)
            os.close(self.lifeline_fd)
            self.lifeline_fd = self._lifeline_writer = -1
        wait(self._children, _LIFELINE_GRACE_S)
        for child in self._children:
            child.process.kill()
            child.process.wait()
            os.close(child.pidfd)
        self._children.clear()
