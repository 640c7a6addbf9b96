"""The machines of a Ray cluster. Ray finds and names them, and starts a node's process; rows do not go through Ray."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainer.cluster import placing
from trainer.cluster.placing import Ended, Started, module_paths

MOVE_S = 5.0  # after which a node that Ray has not started goes to a machine that is free
LOOK_S = 0.5  # between two questions to Ray
ANSWER_S = 3.0  # in which a cluster must answer
ADDRESS = "RAY_ADDRESS"


class NoCluster(ConnectionError):
    """No Ray cluster answers; the text is one sentence for the user."""


class Starter:
    """The Ray actor of a machine: it starts a node's process, which has nothing of Ray inside."""

    def __init__(self) -> None:
        self._started: Started | None = None

    def start(self, call: dict[str, Any], paths: Sequence[str], folder: str) -> None:
        """Start the process, see `Started`; where the learner's machine has modules, this one may have them, too."""
        self._started = Started(call, list(dict.fromkeys([*paths, *sys.path])), folder)

    def poll(self) -> Ended | None:
        """How the process ended; None while it runs."""
        return None if self._started is None else self._started.poll()


class RayNode:
    """A node's process on a machine of the cluster, see `trainer.cluster.placing.Placed`.

    Args:
        ray: the module.
        actor: that starts it.
        started: Ray's reference to the start.
        where: address of its machine.
        others: whether another machine is free.
    """

    def __init__(self, ray: Any, actor: Any, started: Any, where: str, others: Callable[[], bool]) -> None:
        self._ray, self._actor, self._started, self.where, self._others = ray, actor, started, where, others
        self._asked: Any = None
        self._placed_at, self._look_at = time.monotonic(), 0.0

    def waiting(self) -> bool:
        """Whether Ray has not started it yet, as other work holds the machine's cores."""
        return not self._ready(self._started)

    def poll(self) -> Ended | None:
        """How it ended; None while it runs, or Ray has not answered."""
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_S
        try:
            if self._asked is None:
                if not self._ready(self._started):
                    return self._given_up()
                self._ray.get(self._started)
                self._asked = self._actor.poll.remote()
            if not self._ready(self._asked):
                return None
            ended, self._asked = self._ray.get(self._asked), None
        except self._ray.exceptions.RayTaskError as error:
            return Ended(f"it could not be started there ({_last_line(error)})", by_itself=True)
        except self._ray.exceptions.RayError as error:
            return Ended(f"Ray could not run it ({_last_line(error)})", by_itself=False)
        return None if ended is None else Ended(*ended)

    def _given_up(self) -> Ended | None:
        """A machine that is gone looks to Ray for some 20 s as if it were there."""
        if time.monotonic() < self._placed_at + MOVE_S or not self._others():
            return None
        return Ended(f"Ray has not started it within {MOVE_S:.0f} s, and another machine is free", by_itself=False)

    def _ready(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def kill(self) -> None:
        """End the actor, and with it the process."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class RayNodes:
    """The machines of a cluster but this one, see `trainer.cluster.placing.Places`. The process is Ray's driver.

    Args:
        address: HOST:PORT of its head; auto: that of RAY_ADDRESS.

    Raises:
        NoCluster: no cluster answers there.
    """

    def __init__(self, address: str) -> None:
        self.look(address)
        import ray

        address = address_of(address)
        try:
            ray.init(
                address=address, namespace="trainer", logging_level=logging.ERROR, log_to_driver=False,
                configure_logging=False,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise NoCluster(f"the Ray cluster at {address} cannot be used ({str(error).splitlines()[0]})") from error
        for module in (placing, sys.modules[__name__]):  # no machine of the cluster need have them for its actor
            ray.cloudpickle.register_pickle_by_value(module)
        self._ray, self._actor = ray, ray.remote(Starter)
        self.host = ray.util.get_node_ip_address()
        self._here = ray.get_runtime_context().get_node_id()
        self._places: dict[int, str] = {}  # node -> Ray's id of its machine
        self._left_at: dict[str, float] = {}  # when a machine was left, the last of which is taken last
        self._look_at, self._problem = 0.0, ""
        self._machines: list[dict[str, Any]] = []

    @staticmethod
    def look(address: str) -> None:
        """See `trainer.cluster.placing.Places`; Ray itself takes long to find out that nobody listens.

        Raises:
            NoCluster: Ray is not installed, or no cluster answers.
        """
        try:
            version("ray")
        except PackageNotFoundError as error:
            raise NoCluster(
                "cluster=ray needs Ray: pip install 'torchrl-trainer[cluster]', on each node too"
            ) from error
        named = address_of(address)
        host, _, port = named.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_S).close()
        except OSError as error:
            raise NoCluster(
                f"no Ray cluster answers at {named} ({error.strerror or error}): start one by ray start --head "
                f"--port={port} there, and by ray start --address={named} on each node"
            ) from error

    def place(self, number: int, call: dict[str, Any]) -> RayNode | None:
        """See `trainer.cluster.placing.Places`."""
        if (before := self._places.pop(number, None)) is not None:
            self._left_at[before] = time.monotonic()
        free = sorted(self._free(), key=lambda machine: self._left_at.get(machine["NodeID"], 0.0))
        if not free:
            return None
        self._places[number] = free[0]["NodeID"]
        return self._start(free[0], call)

    def _free(self) -> list[dict[str, Any]]:
        return [machine for machine in self._alive() if machine["NodeID"] not in self._places.values()]

    def _start(self, machine: dict[str, Any], call: dict[str, Any]) -> RayNode:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False)
        cores = machine["Resources"]["CPU"]  # all, so that no other node or job of Ray comes beside it
        actor = self._actor.options(num_cpus=cores, max_restarts=0, scheduling_strategy=there).remote()
        where, others = machine["NodeManagerAddress"], lambda: bool(self._free())
        return RayNode(self._ray, actor, actor.start.remote(call, module_paths(), os.getcwd()), where, others)

    def _alive(self) -> list[dict[str, Any]]:
        """The machines that are there, with cores, but for this one."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            try:
                self._machines, self._problem = self._ray.nodes(), ""
            except (self._ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
                self._machines, self._problem = [], f"Ray's head does not answer ({str(error).splitlines()[0]})"
        there = [machine for machine in self._machines if machine["Alive"] and machine["Resources"].get("CPU", 0) >= 1]
        return [machine for machine in there if machine["NodeID"] != self._here]

    def problem(self) -> str:
        """See `trainer.cluster.placing.Places`."""
        return self._problem

    def close(self) -> None:
        """Leave the cluster; Ray ends its actors."""
        self._ray.shutdown()


def _last_line(error: Exception) -> str:
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[-1] if lines else type(error).__name__


def address_of(address: str) -> str:
    """The address that the user named, or that of RAY_ADDRESS, as HOST:PORT.

    Raises:
        NoCluster: neither names one; Ray would join any cluster that it finds on this machine.
    """
    found = os.environ.get(ADDRESS, "") if address == "auto" else address
    host, _, port = found.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65_536):
        what = f"cluster.address={address}" if address != "auto" else f"{ADDRESS}={found}"
        if not found:
            what = "cluster=ray"
        raise NoCluster(
            f"{what} names no Ray cluster: set cluster.address=HOST:PORT, as ray start --head prints it, or {ADDRESS}"
        )
    return found
