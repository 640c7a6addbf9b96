"""Find and end the programs that environments start; a simulator would outlive the process that started it.

A program that a child of the run executes inherits an environment variable that names the child (`MARK`); a process
that it only forks inherits the child's process name (`prctl`). No other process is ever ended here.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import time
from collections.abc import Collection
from pathlib import Path

RUN = "TRAINER_RUN"  # variable of all processes of a run: <pid of the main process>.<random>
MARK = "TRAINER_CHILD"  # variable of a child and of all that it starts: <value of RUN>.<pid of the child>
PR_SET_NAME = 15  # linux/prctl.h
SWEEP_S = 2.0  # after this time `end` stops looking for new processes


def begin_run() -> str:
    """Mark this process as the main one of a run, and return the mark, which is the same at every call."""
    mark = os.environ.get(RUN, "")
    if mark.partition(".")[0] != str(os.getpid()):
        mark = os.environ[RUN] = f"{os.getpid()}.{secrets.token_hex(8)}"
    return mark


def main_pid() -> int:
    """Process id of the main process; to be called in one of its children or in its fork server."""
    return int(os.environ[RUN].partition(".")[0])


def mark_child() -> None:
    """Mark this process, a child of the main one, so that `started_by` finds what it starts from now on."""
    os.environ[MARK] = f"{os.environ.get(RUN, '')}.{os.getpid()}"
    ctypes.CDLL(None).prctl(PR_SET_NAME, _name(os.getpid()).encode(), 0, 0, 0)


def started_by(children: Collection[int] | None) -> list[int]:
    """Process ids of the living processes that children of the main process started, without the children themselves.

    Args:
        children: their process ids, also of children that have ended; None: all children.
    """
    run = os.environ.get(RUN, "")
    parents, found = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (path / "stat").read_text().rpartition(")")
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has just ended, or is another user's
            continue
        pid, state, parent = int(path.name), *rest.split()[:2]
        if state == "Z" or pid == os.getpid():
            continue
        parents[pid] = int(parent)
        owner = _owner(run, pid, variables, head.partition("(")[2])
        if owner is not None and (children is None or owner in children):
            found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - set(children or ()))


def children_of(pid: int) -> list[int]:
    """Process ids of the living children of a process, with those that it adopted."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # the process has just ended
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.name))
    return found


def _owner(run: str, pid: int, variables: list[bytes], name: str) -> int | None:
    """The child of this run that started a process, by its process id; None if none did."""
    for variable in variables:
        key, _, value = variable.partition(b"=")
        if key == MARK.encode() and value.startswith(f"{run}.".encode()):
            return int(value.rpartition(b".")[2])
    if f"{RUN}={run}".encode() in variables and name.startswith(_name("")):
        owner = int(name.removeprefix(_name("")))
        return owner if owner != pid else None
    return None


def _name(pid: int | str) -> str:
    return f"trainer {pid}"  # 15 characters at most


def end(children: Collection[int] | None) -> list[int]:
    """Kill the processes that these children (None: all children) started, and return their process ids."""
    ended: set[int] = set()
    deadline = time.monotonic() + SWEEP_S
    while (left := started_by(children)) and time.monotonic() < deadline:
        end_all(left)
        ended.update(left)
        time.sleep(0.005)
    return sorted(ended)


def end_all(pids: Collection[int]) -> None:
    """Kill processes; those that have ended or are another user's are skipped."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
