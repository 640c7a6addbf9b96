"""Programs that a user's environments start: found by what their process left in them, and ended with it.

A simulator outlives the process that started it. Whatever a child of a run executes inherits a variable that names the
child (`MARK`); what it forks without executing anything inherits its name (`prctl`). Nothing else is ever ended here.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import time
from collections.abc import Collection
from pathlib import Path

RUN = "TRAINER_RUN"  # <pid of the main process>.<random>, in the environment of all processes of a run
MARK = "TRAINER_CHILD"  # <RUN>.<pid of the child>, in the environment of what a child starts
PR_SET_NAME = 15  # linux/prctl.h
SWEEP_S = 2.0  # until nothing new is started by what is being ended


def begin_run() -> str:
    """Give this process, the main one, its mark; the same at every call."""
    mark = os.environ.get(RUN, "")
    if mark.partition(".")[0] != str(os.getpid()):
        mark = os.environ[RUN] = f"{os.getpid()}.{secrets.token_hex(8)}"
    return mark


def main_pid() -> int:
    """Process id of the main process, in one of its children or in its fork server."""
    return int(os.environ[RUN].partition(".")[0])


def mark_child() -> None:
    """Mark this process, a child of the main one: what it starts from now on can be found."""
    os.environ[MARK] = f"{os.environ.get(RUN, '')}.{os.getpid()}"
    ctypes.CDLL(None).prctl(PR_SET_NAME, _name(os.getpid()).encode(), 0, 0, 0)


def started_by(children: Collection[int] | None) -> list[int]:
    """Living processes that children of this run's main process started, these themselves left out.

    Args:
        children: process ids, of processes that may be gone; None: all that there ever were.
    """
    run = os.environ.get(RUN, "")
    parents, found = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (path / "stat").read_text().rpartition(")")
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile, or is another user's
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
    """Living children of a process, those that it adopted too."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.name))
    return found


def _owner(run: str, pid: int, variables: list[bytes], name: str) -> int | None:
    """The child that started a process; None where none of this run did."""
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
    """End at once whatever these children started; `None`: all of them. Returns the processes that were ended."""
    ended: set[int] = set()
    deadline = time.monotonic() + SWEEP_S
    while (left := started_by(children)) and time.monotonic() < deadline:
        end_all(left)
        ended.update(left)
        time.sleep(0.005)
    return sorted(ended)


def end_all(pids: Collection[int]) -> None:
    """End processes at once, as far as they are there and may be ended."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # it has just ended, or has another user's rights now
