"""A process of simulated workers: ``python -m afd.simulate``, a HostConfig on standard input."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec
import zmq

from afd.config import Role
from afd.plan.model_spec import load_model
from afd.simulate.config import HostConfig
from afd.simulate.executor import SimulatedAttention, SimulatedFfn
from afd.simulate.profile import load_profile, service_times
from afd.worker.lifeline import end_with_launcher
from afd.worker.loop import Seat, StepExecutor, WrongPlanError, serve
from afd_sched.links import WorkerLink
from afd_sched.messages import PROTOCOL_VERSION, Hello, Ready, WorkerFailed
from afd_sched.replica import PlanError, SlotTable
from afd_sched.spans import Recorder


def _seats(config: HostConfig, context: zmq.Context[zmq.Socket[bytes]]) -> list[Seat]:
    simulation = config.simulation
    model = load_model(simulation.model)
    topology, engine = simulation.topology, simulation.engine
    times = service_times(
        load_profile(simulation.profile),
        model,
        topology.attention_nodes,
        topology.ffn_nodes,
        simulation.context_length,
    )
    seats = []
    for rank in config.ranks:
        link = WorkerLink(config.endpoint, rank, config.keys.get(rank), context)
        role = topology.role(rank)
        executor: StepExecutor = SimulatedFfn(rank)
        if role is Role.ATTENTION:
            table = SlotTable(
                slots=engine.max_running_requests,
                pages_per_slot=-(-simulation.context_length // engine.page_size),
            )
            executor = SimulatedAttention(rank, table, model, times)
        link.send(Hello(PROTOCOL_VERSION, role.value, rank, os.getpid()))
        link.send(Ready(rank, simulation.pages if role is Role.ATTENTION else 0))
        if rank in config.timeline_fds:
            from afd.worker.watched_steps import WatchedExecutor

            executor = WatchedExecutor(executor, Recorder(config.timeline_fds[rank]))
        seats.append(Seat(link, executor))
    return seats


def main() -> int:
    """Runs until every rank heard Stop; 0 on an orderly end, 1 after a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=HostConfig)
    end_with_launcher(config.lifeline_fd)
    logging.basicConfig(
        level=config.simulation.engine.log_level.upper(),
        format=f"%(asctime)s ranks {config.ranks[0]}-{config.ranks[-1]}: %(levelname)s %(message)s",
    )
    with zmq.Context() as context:
        seats = _seats(config, context)
        try:
            serve(seats)
        except (PlanError, WrongPlanError, ValueError) as error:
            seats[0].link.send(WorkerFailed(rank=config.ranks[0], reason=str(error)))
            return 1
        finally:
            for seat in seats:
                seat.link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
