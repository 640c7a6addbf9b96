"""Collectors on other machines as the main process sees them: the gateway's process, and what it tells of the nodes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer.cluster import gateway
from trainer.config.fields import ConfigError
from trainer.config.registries import CLUSTERS, registered
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host.errors import RunFailed
from trainer.memory.boards import ControlBoard
from trainer.memory.pulse import new_pulse
from trainer.roles.agents import without_scheme
from trainer.roles.rollout import CollectorPlan
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.rows import Row
from trainer.training.playing import resumed
from trainer.training.processes import Piped, spawn
from trainer.training.supervisor import Role, Supervisor

POLL_S = 0.01
SAY_EVERY_S = 1.0  # between two lines on how many nodes are there
CLOSING_S = 30.0  # most time for the gateway to end its nodes


class ClusterCollectors:
    """The workers of all nodes; see `trainer.training.playing.Collectors`.

    Args:
        config: of the run.
        plans: of the workers, in their order.
        board: control board.
        supervisor: of the gateway.
        loggers: for what happens to nodes.

    Attributes:
        gateway: its process.
    """

    def __init__(
        self, config: Config, plans: Sequence[CollectorPlan], board: ControlBoard, supervisor: Supervisor,
        loggers: Loggers,
    ) -> None:  # fmt: skip
        self.config, self.board, self.plans, self._loggers = config, board, list(plans), loggers
        self.restarts, self._figures, self._up = 0, Row(), 0
        self._pulse = new_pulse()
        self.gateway = supervisor.add(
            Role(
                role="gateway",
                name=lambda pid: f"the gateway (pid {pid})" if pid else "the gateway",
                start=self._begin,
                heartbeat=lambda: float(self._pulse[0]),
                hang_s=config.faults.hang_seconds,
                before=self._lose_all,
                then=lambda: "; its nodes end, another gateway starts them again, and learning goes on",
                closing_s=CLOSING_S,
            )
        )

    def _begin(self) -> Piped:
        self._pulse = new_pulse()
        workers, (agent,) = [plan.worker for plan in self.plans], self.plans[0].agents
        share = len(workers) // self.config.cluster.nodes
        nodes = [workers[first : first + share] for first in range(0, len(workers), share)]
        starts, again = [plan.start for plan in self.plans], self.gateway.restarts > 0
        arguments = (without_scheme(agent), self.board, self.config, nodes, starts, again, self._pulse)
        return Piped(lambda pipe: spawn(gateway.run, (*arguments, pipe), "gateway"), self._hear)

    def _lose_all(self) -> None:
        """Prepare another gateway: its workers are others than those before, and have other seeds."""
        self._figures, self._up = Row(), 0
        self._take_starts([plan.start + 1 for plan in self.plans])

    def _take_starts(self, starts: Sequence[int]) -> None:
        self.restarts += sum(starts) - sum(plan.start for plan in self.plans)
        self.plans = [dataclasses.replace(plan, start=start) for plan, start in zip(self.plans, starts, strict=True)]

    def _hear(self, message: tuple[str, Any]) -> str:
        """Take what the gateway tells.

        Raises:
            RunFailed: something that nothing will mend, as other code on a node.
        """
        kind, value = message
        if kind == "refused":
            text, traceback = value
            raise RunFailed(text, "node" if traceback else "gateway", traceback, self.gateway.pid)
        if kind in ("up", "lost"):
            self._up += kind == "up"
            self._loggers.event(value, role="gateway", pid=self.gateway.pid)
        elif kind == "event":
            role, text = value
            self._loggers.event(text, role=role)
        elif kind == "starts":
            self._take_starts(value)
        elif kind == "figures":
            self._figures = value
        return str(value) if kind == "error" else ""

    def metrics(self) -> Row:
        """See `Collectors`."""
        return {"nodes": 0, "worker_restarts": self.restarts, **self._figures}

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """See `Collectors`; nodes begin new episodes."""
        self.plans = resumed(self.plans, starts, exact=False)

    def starts(self) -> list[int]:
        """See `Collectors`."""
        return [plan.start + 1 for plan in self.plans]

    def start(self) -> None:
        """Start the gateway, and wait until the first node collects; others join when they are there.

        Raises:
            RunFailed: there is no cluster, or a node was refused or failed too often.
        """
        began, said = time.monotonic(), EverySeconds(SAY_EVERY_S)
        self.gateway.start()
        while not self._up:
            self.gateway.check()
            time.sleep(POLL_S)
            if said.crossed():
                seconds, nodes = time.monotonic() - began, self.config.cluster.nodes
                self._loggers.progress(f"waiting for the first of {nodes} nodes, {seconds:.0f} s")

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Let every worker collect a round."""
        self.board.round[0] += 1
        while (self.board.rounds_done < self.board.round[0]).any():
            wait()

    def save_snapshots(self, number: int) -> None:
        """Do nothing: workers of other machines begin new episodes after a resume."""

    def close(self) -> None:
        """Do nothing: the supervisor ends the gateway, and with it the nodes."""


def check_cluster(config: Config, world: Sequence[tuple[str, EnvSpec]]) -> None:
    """Refuse a world that nodes do not collect in, and a cluster that does not answer.

    Raises:
        ConfigError: in one sentence.
    """
    name = config.cluster.name
    if not config.cluster.remote:
        return
    if len(world) > 1 or world[0][1].against_opponents:
        what = "turn-based games" if world[0][1].against_opponents else f"{len(world)} agents, as {config.env.id} has"
        raise ConfigError(f"cluster={name} collects for one agent, not for {what}: set cluster=none")
    try:
        registered(CLUSTERS, name).look(config.cluster.address)
    except ConnectionError as error:
        raise ConfigError(str(error)) from error
