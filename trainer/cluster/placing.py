"""Where nodes run: `Places` finds machines for them, `Placed` is a node's process on one; here, those of `local`.

`trainer.cluster.ray_nodes` has the places of a Ray cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

MOST_WORDS = 4_096  # bytes of what a node printed last


class Ended(NamedTuple):
    """How a node's process ended.

    Args:
        how: in words.
        by_itself: whether it ran, and ended; else its machine is to blame.
    """

    how: str
    by_itself: bool


class Placed(Protocol):
    """A node's process, wherever it runs."""

    where: str

    def waiting(self) -> bool:
        """Whether it still waits for its machine."""

    def poll(self) -> Ended | None:
        """How it ended; None while it runs, or while nothing is known. Does not wait."""

    def kill(self) -> None:
        """End it at once. Safe to call twice."""


class Places(Protocol):
    """The machines for the nodes of a run."""

    host: str

    @staticmethod
    def look(address: str) -> None:
        """Look whether there is a cluster at an address.

        Raises:
            ConnectionError: there is none, in one sentence that says what to do.
        """

    def place(self, number: int, call: dict[str, Any]) -> Placed | None:
        """Start a node's process on a machine without a node; None if there is none now. Does not wait.

        Args:
            number: of the node.
            call: what the process needs to call the gateway, see `Started`.
        """

    def problem(self) -> str:
        """Why no node can be placed for now, in words; "" if nothing is wrong."""

    def close(self) -> None:
        """Leave the cluster."""


class Started:
    """A node's process on this machine. It ends with this one, whose end it finds in its standard input.

    Args:
        call: address and key of the gateway, and the node's number; handed over by standard input, as arguments and
            variables can be read by others.
        paths: of Python's modules.
        folder: to work in, if it is there.
    """

    def __init__(self, call: dict[str, Any], paths: Sequence[str], folder: str) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, until the process has ended
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.node"], stdin=subprocess.PIPE, stdout=self._said, stderr=self._said,
            env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=folder if os.path.isdir(folder) else None,
        )  # fmt: skip
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            self._process.stdin.write(f"{json.dumps(call)}\n".encode())
            self._process.stdin.flush()

    def poll(self) -> Ended | None:
        """How it ended, with the last line that it printed; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - MOST_WORDS))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Ended(f"its process ended by {how}" + (f" ({lines[-1]})" if lines else ""), by_itself=True)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


def module_paths() -> list[str]:
    """Where this process finds modules, without relative paths."""
    return [os.path.abspath(path) for path in sys.path]


class LocalNode:
    """A node's process on this machine, see `Placed`.

    Args:
        started: the process.
    """

    where = "this machine"

    def __init__(self, started: Started) -> None:
        self.poll, self.kill = started.poll, started.kill

    def waiting(self) -> bool:
        """It never waits."""
        return False


class LocalNodes:
    """This machine as the machine of every node, see `Places`.

    Args:
        address: not used.
    """

    host = "127.0.0.1"

    def __init__(self, address: str) -> None:
        del address

    @staticmethod
    def look(address: str) -> None:
        """It is always there."""

    def place(self, number: int, call: dict[str, Any]) -> LocalNode:
        """See `Places`."""
        return LocalNode(Started(call, module_paths(), os.getcwd()))

    def problem(self) -> str:
        """Nothing is ever wrong."""
        return ""

    def close(self) -> None:
        """Nothing to leave."""
