"""One running launch: its processes and the link to the coordinator."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from afd.errors import EngineDeadError, LaunchError
from afd.launch.children import Child, Children, wait
from afd.launch.crew import Crew, Meeting, Workers
from afd.launch.listen import Listener, listen, socket_folder
from afd.launch.resolve import ResolvedConfig
from afd.launch.signals import undisturbed
from afd.launch.timeline import COORDINATOR, Timeline
from afd_sched.coordinator import CoordinatorConfig
from afd_sched.links import FRONTEND, FrontendLink, worker_identity
from afd_sched.messages import (
    PROTOCOL_VERSION,
    Abort,
    Failed,
    Generate,
    GetStats,
    Hello,
    RankLost,
    Rejected,
    SamplingParams,
    Started,
    Stats,
    Stop,
    Tokens,
)
from afd_sched.security import CoordinatorKeys, launch_keys

_STOP_GRACE_S = 5.0
# A dying worker's own words are better than "exited with status 1"; they arrive at once or never.
_LAST_WORDS_S = 1.0


class Launch:
    """Starts every process and waits until all are ready; ``close`` ends them, however it went.

    Requests go in by ``submit``, tokens come out of ``poll``; after EngineDeadError only ``close``
    is left to call.
    """

    def __init__(self, crew: Crew) -> None:
        """Raises LaunchError naming what failed or is missing; then nothing is left running."""
        self._crew = crew
        self._timeline = Timeline(crew.engine, crew.topology)
        self._children = Children()
        self._link: FrontendLink | None = None
        self._listener: Listener | None = None
        self._coordinator_process: Child | None = None
        self._dead: EngineDeadError | None = None
        self._next_uid = 0
        self._folder = socket_folder()
        try:
            self._start()
            self.started = self._await_start()
            # Everybody is connected: nothing on disk is needed any more.
            shutil.rmtree(self._folder, ignore_errors=True)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------- requests

    def submit(
        self,
        input_ids: Sequence[int] | NDArray[np.int32],
        sampling: SamplingParams,
        priority: int = 0,
    ) -> int:
        """Starts a request; returns its uid."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        self._send(Generate(uid, np.asarray(input_ids, np.int32).tobytes(), sampling, priority))
        return uid

    def abort(self, uid: int) -> None:
        """Ends a request; its remaining tokens never arrive."""
        self._send(Abort(uid))

    def poll(self, timeout_s: float | None = None) -> Tokens | Rejected | Stats | None:
        """The next event, or None after ``timeout_s``; raises EngineDeadError."""
        message = self._receive(timeout_s)
        if isinstance(message, Failed):
            raise self._die(message.reason, message.rank)
        if isinstance(message, Tokens | Rejected | Stats):
            return message
        return None

    def stats(self) -> dict[str, float]:
        """Counters of the coordinator; to be asked for when no request is open."""
        self.ask_stats()
        while not isinstance(event := self.poll(None), Stats):
            pass
        return event.values

    def ask_stats(self, restart: bool = False) -> None:
        """Has a Stats come out of ``poll``; then the step times may ``restart``."""
        self._send(GetStats(restart))

    # ------------------------------------------------------------------------------- life

    def close(self) -> None:
        """Ends every process, frees the memory and writes the timeline; may be called again, or
        half-way up. It takes seconds at most, so Ctrl-C waits for it."""
        with undisturbed():
            self._close()

    def _close(self) -> None:
        deadline = time.monotonic() + (0.0 if self._link is None else _STOP_GRACE_S)
        if self._link is not None and self._coordinator_process is not None:
            if self._coordinator_process not in self._children.ended():
                self._link.send(Stop())
                # Until it has told the ranks.
                wait([self._coordinator_process], _STOP_GRACE_S)
            # One of them may wait for another that has heard it already.
            lost = None if self._dead is None else self._dead.rank
            self._crew.raise_abort(-1 if lost is None else lost)
        self._children.end(max(0.0, deadline - time.monotonic()))
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._listener is not None:
            self._listener.close()
        self._crew.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._dead is None:
            self._dead = EngineDeadError("the engine is closed")
        self._timeline.write()

    def _start(self) -> None:
        crew = self._crew
        self._listener = listener = listen(crew.engine.host, self._folder)
        names = [FRONTEND, *map(worker_identity, range(crew.topology.ranks))]
        coordinator_keys, keys = launch_keys(names) if listener.is_tcp else (None, {})
        self._coordinator_process = self._children.start(
            "the coordinator",
            "afd_sched",
            msgspec.json.encode(self._coordinator(listener, coordinator_keys)),
            ([listener.fd] if listener.is_tcp else []) + [*self._timeline.fds((COORDINATOR,))],
        )
        listener.close()
        meeting = Meeting(listener.endpoint, keys, self._children.lifeline_fd, self._timeline)
        for process in crew.processes(meeting):
            self._children.start(
                process.name, process.module, process.config, process.fds, process.rank
            )
        self._link = FrontendLink(listener.endpoint, keys.get(FRONTEND))
        hello = Hello(version=PROTOCOL_VERSION, role="frontend", rank=-1, pid=os.getpid())
        self._link.send(hello)

    def _coordinator(self, listener: Listener, keys: CoordinatorKeys | None) -> CoordinatorConfig:
        engine = self._crew.engine
        return CoordinatorConfig(
            **msgspec.structs.asdict(self._crew.scheduler()),
            endpoint=listener.endpoint,
            listening_fd=listener.fd,
            keys=keys,
            start_timeout_s=engine.start_timeout_s,
            log_level=engine.log_level,
            lifeline_fd=self._children.lifeline_fd,
            timeline_fd=self._timeline.fd(COORDINATOR),
        )

    def _await_start(self) -> Started:
        # The coordinator names who is missing; this bound is for the coordinator itself.
        deadline = time.monotonic() + self._crew.engine.start_timeout_s + _STOP_GRACE_S
        while (left_s := deadline - time.monotonic()) > 0:
            message = self._receive(left_s)
            if isinstance(message, Started):
                return message
            if isinstance(message, Failed):
                self._dead = EngineDeadError(self._sentence(message.reason, message.rank))
                raise LaunchError(str(self._dead))
        raise LaunchError(
            f"the coordinator did not answer within {self._crew.engine.start_timeout_s:.0f} s"
        )

    # ------------------------------------------------------------------------------- messages

    def _send(self, message: Generate | Abort | GetStats | RankLost) -> None:
        if self._dead is not None or self._link is None:
            raise self._dead or EngineDeadError("the engine is closed")
        self._link.send(message)

    def _receive(
        self, timeout_s: float | None
    ) -> Started | Tokens | Rejected | Failed | Stats | None:
        if self._dead is not None or self._link is None:
            raise self._dead or EngineDeadError("the engine is closed")
        if (message := self._link.recv(0)) is not None:
            return message
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        for child in self._children:
            poller.register(child.pidfd, zmq.POLLIN)
        poller.poll(None if timeout_s is None else int(timeout_s * 1000))
        if (message := self._link.recv(0)) is not None:
            return message
        if ended := self._children.ended():
            return self._last_words(ended[0])
        return None

    def _last_words(self, child: Child) -> Failed:
        """What the coordinator heard from a child that ended, or how it ended."""
        link = self._link
        deadline = time.monotonic() + _LAST_WORDS_S
        while link is not None and (left_s := deadline - time.monotonic()) > 0:
            message = link.recv(int(left_s * 1000))
            if isinstance(message, Failed):
                return message
        return Failed(
            rank=-1 if child.rank is None else child.rank,
            reason=f"{child.name} {child.how_it_ended()}",
        )

    def _sentence(self, reason: str, rank: int) -> str:
        name = self._crew.topology.describe(rank) if rank >= 0 else ""
        return reason if not name or name in reason else f"{name} failed: {reason}"

    def _die(self, reason: str, rank: int) -> EngineDeadError:
        self._dead = EngineDeadError(self._sentence(reason, rank), rank if rank >= 0 else None)
        self._crew.raise_abort(rank)
        return self._dead


class Engine(Launch):
    """A launch of real workers."""

    def __init__(self, config: ResolvedConfig) -> None:
        """See Launch."""
        super().__init__(Workers(config))
