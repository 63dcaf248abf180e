"""The coordinator process: sockets, clock and start-up around StepLoop."""

from __future__ import annotations

import time

import msgspec
import zmq

from afd_sched.clocks import Clocks
from afd_sched.links import FRONTEND, CoordinatorLink, worker_identity
from afd_sched.messages import (
    PROTOCOL_VERSION,
    Abort,
    Failed,
    FfnResult,
    Generate,
    GetStats,
    Hello,
    Message,
    Ping,
    Pong,
    RankLost,
    Ready,
    Started,
    Stats,
    StepResult,
    Stop,
    WorkerFailed,
)
from afd_sched.scheduler import RunFailed, Scheduler, SchedulerConfig
from afd_sched.security import CoordinatorKeys
from afd_sched.spans import Phase, Recorder
from afd_sched.steps import StepLoop
from afd_sched.watched import WatchedStepLoop

_PING_ROUNDS = 5
_PING_PATIENCE_S = 2.0


class CoordinatorConfig(SchedulerConfig, frozen=True, kw_only=True):
    """SchedulerConfig and the process's own; ``lifeline_fd`` ends with the launcher.

    ``listening_fd`` and ``keys``: see CoordinatorLink; ``timeline_fd``: see Recorder, -1 for none.
    """

    endpoint: str
    start_timeout_s: float
    log_level: str
    lifeline_fd: int
    listening_fd: int = -1
    timeline_fd: int = -1
    keys: CoordinatorKeys | None = None

    @property
    def ranks(self) -> int:
        """Number of workers."""
        return self.attention_ranks + self.ffn_ranks

    def describe(self, rank: int) -> str:
        """ "attention rank 1" or "FFN rank 2", as messages name them."""
        return f"{'attention' if rank < self.attention_ranks else 'FFN'} rank {rank}"


class _Over(Exception):
    """The run has ended; ``failure`` is None for an orderly stop."""

    def __init__(self, failure: Failed | None = None) -> None:
        super().__init__(failure.reason if failure else "stopped")
        self.failure = failure


class Coordinator:
    """One run: start-up, the loop, the end."""

    def __init__(self, config: CoordinatorConfig, link: CoordinatorLink) -> None:
        self._config = config
        self._link = link
        self._loop: StepLoop | None = None
        self._pages: dict[int, int] = {}
        self._clocks = Clocks()
        # A ROUTER drops what it sends to a peer that has not spoken yet.
        self._frontend_here = False
        self._poller = zmq.Poller()
        link.register(self._poller)
        self._poller.register(config.lifeline_fd, zmq.POLLIN)

    def run(self) -> int:
        """Until Stop, a failure, or the launcher's end; returns the exit status."""
        try:
            self._loop = self._start()
            while True:
                self._drain(None)
                try:
                    for rank, message in self._loop.advance(time.monotonic() * 1000):
                        self._send(rank, message)
                    self._loop.tidy()
                except RunFailed as error:
                    raise _Over(Failed(error.rank, str(error))) from error
        except _Over as over:
            if over.failure is not None:
                self._report(over.failure)
            for rank in range(self._config.ranks):
                self._send(rank, Stop())
            return 0 if over.failure is None else 1

    def _report(self, failure: Failed) -> None:
        """Tells the front end, however early the failure came."""
        while not self._frontend_here:
            events = dict(self._poller.poll())
            if self._config.lifeline_fd in events:
                return
            self._link.attend(events)
            while (arrived := self._link.recv()) is not None:
                identity, message = arrived
                self._frontend_here |= identity == FRONTEND and isinstance(message, Hello)
        self._link.send(FRONTEND, failure)

    def _start(self) -> StepLoop:
        config = self._config
        deadline = time.monotonic() + config.start_timeout_s
        while len(self._pages) < config.ranks or not self._frontend_here:
            all_ready = len(self._pages) == config.ranks
            # The front end is our parent: it comes, or the lifeline ends.
            self._drain(None if all_ready else max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline and len(self._pages) < config.ranks:
                missing = [config.describe(r) for r in range(config.ranks) if r not in self._pages]
                raise _Over(
                    Failed(
                        -1,
                        f"{', '.join(missing)} did not become ready within "
                        f"{config.start_timeout_s:g} s",
                    )
                )
        pages = [self._pages[rank] for rank in range(config.attention_ranks)]
        scheduler = Scheduler(config, pages)
        recorder = self._compare_clocks() if config.timeline_fd >= 0 else None
        self._link.send(
            FRONTEND,
            Started(
                kv_tokens_per_rank=min(pages) * config.page_size,
                max_total_tokens=scheduler.max_total_tokens,
            ),
        )
        sizes = (scheduler, config.attention_ranks, config.ffn_ranks)
        return StepLoop(*sizes) if recorder is None else WatchedStepLoop(*sizes, recorder)

    def _compare_clocks(self) -> Recorder:
        """A timeline's recorder, with every rank's clock against this one in it."""
        recorder = Recorder(self._config.timeline_fd)
        for _ in range(_PING_ROUNDS):
            for rank in range(self._config.ranks):
                self._send(rank, Ping(time.monotonic_ns()))
        deadline = time.monotonic() + _PING_PATIENCE_S
        while len(self._clocks.offsets) < self._config.ranks and time.monotonic() < deadline:
            self._drain(max(0.0, deadline - time.monotonic()))
        for rank, clock in self._clocks.offsets.items():
            recorder.step = rank
            recorder.span(Phase.CLOCK, clock.offset_ns, clock.offset_ns + clock.round_trip_ns)
        return recorder

    def _send(self, rank: int | None, message: Message) -> None:
        self._link.send(FRONTEND if rank is None else worker_identity(rank), message)

    def _drain(self, timeout_s: float | None) -> None:
        """Waits for something to happen, then handles all that has."""
        events = dict(self._poller.poll(None if timeout_s is None else int(timeout_s * 1000)))
        if self._config.lifeline_fd in events:
            raise _Over
        self._link.attend(events)
        while (arrived := self._link.recv()) is not None:
            self._handle(*arrived)

    def _handle(self, identity: bytes, message: Message) -> None:
        if identity == FRONTEND:
            self._from_frontend(message)
        else:
            self._from_worker(identity, message)

    def _from_frontend(self, message: Message) -> None:
        match message:
            case Hello() if self._loop is None:
                self._frontend_here = True
                self._check_version(-1, message.version)
            case Stop():
                raise _Over
            case RankLost():
                raise _Over(Failed(message.rank, message.reason))
            case Generate() if self._loop is not None:
                if (rejected := self._loop.generate(message)) is not None:
                    self._link.send(FRONTEND, rejected)
            case Abort() if self._loop is not None:
                self._loop.abort(message)
            case GetStats() if self._loop is not None:
                self._link.send(FRONTEND, Stats(self._values(self._loop)))
                if message.restart:
                    self._loop.statistics.restart()
            case _:
                self._refuse(FRONTEND, message)

    def _values(self, loop: StepLoop) -> dict[str, float]:
        own = {"clock_ms": time.monotonic() * 1000, "cpu_ms": time.process_time() * 1000}
        return loop.values() | self._link.values() | own

    def _from_worker(self, identity: bytes, message: Message) -> None:
        rank = getattr(message, "rank", -1)
        if rank not in range(self._config.ranks) or identity != worker_identity(rank):
            self._refuse(identity, message)
            return
        match message:
            case Hello() if self._loop is None:
                self._check_version(rank, message.version)
            case Ready() if self._loop is None:
                self._ready(message)
            case Pong():
                self._clocks.pong(message, time.monotonic_ns())
            case WorkerFailed():
                raise _Over(Failed(rank, message.reason))
            case StepResult() | FfnResult() if self._loop is not None and self._loop.result(
                message
            ):
                pass
            case _:
                self._refuse(identity, message)

    def _ready(self, message: Ready) -> None:
        if message.pages < 1 and message.rank < self._config.attention_ranks:
            raise _Over(Failed(message.rank, "it has no KV page; lower its memory use elsewhere"))
        self._pages[message.rank] = message.pages

    def _check_version(self, rank: int, version: int) -> None:
        if version != PROTOCOL_VERSION:
            sentence = (
                f"control protocol version {version} differs from the coordinator's "
                f"{PROTOCOL_VERSION}; install the same afd everywhere"
            )
            raise _Over(Failed(rank, sentence))

    def _refuse(self, identity: bytes, message: Message) -> None:
        self._link.messages.add("%s from %r is out of place", type(message).__name__, identity)


def run(config: CoordinatorConfig) -> int:
    """Runs a coordinator on ``config.endpoint``; returns the exit status."""
    link = CoordinatorLink(config.endpoint, config.keys, config.listening_fd)
    try:
        return Coordinator(config, link).run()
    finally:
        link.close()


def decode_config(data: bytes) -> CoordinatorConfig:
    """CoordinatorConfig from JSON; raises msgspec.ValidationError with the path to a bad field."""
    return msgspec.json.decode(data, type=CoordinatorConfig)
