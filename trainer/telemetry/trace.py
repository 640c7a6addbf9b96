"""Trace what each process does when: spans in memory, one file for each process, at the end one trace of the run.

A run with `telemetry.trace=true` leaves RUN/trace.json, which ui.perfetto.dev and chrome://tracing open. Without
tracing no function is wrapped, so it costs nothing.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.reading import read_json
from trainer.run_folder import manifest

P = ParamSpec("P")
R = TypeVar("R")
PARTS = "trace"  # folder in the run folder where each process writes its part, until `merge`
WAIT_GAP_NS = 1_000_000  # waits that follow one another within this time become one span


class Trace:
    """The last spans of one role in this process. No other process or thread uses it, so it has no lock.

    Args:
        folder: where the part is written.
        role: `collector`, `learner`, `evaluator` or `main`.
        name: tells processes of one role apart, as a worker's number.
        most: number of spans to remember, the newest ones.

    Attributes:
        clock: the time in ns, for `chain`.
    """

    clock = staticmethod(time.monotonic_ns)

    def __init__(self, folder: Path, role: str, name: str, most: int) -> None:
        self._folder, self._role, self._name = folder, role, f"{role} {name}".strip()
        self._most = most
        self._chains: list[tuple[tuple[str, ...], str]] = []  # (kinds, agent) by number
        # (number, start, end of the first kind, end of the second, ...) in ns
        self._records: deque[tuple[int, ...]] = deque(maxlen=most)
        self._saved: tuple[int, ...] | None = None

    def timed(self, function: Callable[P, R], kind: str, agent: str = "") -> Callable[P, R]:
        """Wrap a function so that each call leaves a span of this kind; a call that raises leaves none."""
        add, clock, number = self._records.append, time.monotonic_ns, self._number((kind,), agent)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            start = clock()
            result = function(*args, **kwargs)
            add((number, start, clock()))
            return result

        return call

    def waiting(self, function: Callable[P, R], kind: str, agent: str = "") -> Callable[P, R]:
        """As `timed`, for a short wait that is repeated: calls that follow one another become one span."""
        records, clock, number = self._records, time.monotonic_ns, self._number((kind,), agent)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            start = clock()
            result = function(*args, **kwargs)
            if records and records[-1][0] == number and start - records[-1][2] < WAIT_GAP_NS:
                start = records.pop()[1]
            records.append((number, start, clock()))
            return result

        return call

    def follow(self, part: Any, method: str, kind: str, agent: str = "") -> None:
        """Wrap a method of an object by `timed`."""
        setattr(part, method, self.timed(getattr(part, method), kind, agent))

    def chain(self, *kinds: str, agent: str = "") -> tuple[int, Callable[[tuple[int, ...]], None]]:
        """For a hot loop that reads the clock itself between consecutive parts, at a third of the cost of `timed`.

        Returns:
            A number, and a function that takes `(number, start, end of the first kind, end of the second, ...)`, times
            in ns of `time.monotonic_ns`.
        """
        return self._number(kinds, agent), self._records.append

    def save(self) -> None:
        """Write this process's part, whole or not at all, if there are new spans.

        Raises:
            OSError: it could not be written.
        """
        if not self._records or self._records[-1] is self._saved:
            return
        self._saved = self._records[-1]
        kinds: list[tuple[str, str]] = []  # of all chains in a row
        first: list[int] = []  # index in `kinds` at which each chain begins
        for names, agent in self._chains:
            first.append(len(kinds))
            kinds += [(name, agent) for name in names]
        spans = [
            (first[number] + i, *times[i : i + 2]) for number, *times in self._records for i in range(len(times) - 1)
        ]
        part = {
            "role": self._role, "name": self._name, "pid": os.getpid(), "kinds": kinds, "spans": spans[-self._most :],
        }  # fmt: skip
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{os.getpid()}_{re.sub(r'[^A-Za-z0-9]+', '_', self._name)}.json"
        with manifest.written(path) as file:
            file.write(json.dumps(part).encode())

    def _number(self, kinds: tuple[str, ...], agent: str) -> int:
        self._chains.append((kinds, agent))
        return len(self._chains) - 1


class NoTrace:
    """The `Trace` of a run without tracing: it wraps nothing.

    Attributes:
        clock: costs next to nothing, as its time is not used.
    """

    clock = staticmethod(int)

    def timed(self, function: Callable[P, R], kind: str, agent: str = "") -> Callable[P, R]:
        """The function itself."""
        return function

    def waiting(self, function: Callable[P, R], kind: str, agent: str = "") -> Callable[P, R]:
        """The function itself."""
        return function

    def follow(self, part: Any, method: str, kind: str, agent: str = "") -> None:
        """Leave the method as it is."""

    def chain(self, *kinds: str, agent: str = "") -> tuple[int, Callable[[tuple[int, ...]], None]]:
        """As `Trace.chain`; the function does nothing."""
        return 0, _ignore

    def save(self) -> None:
        """Write nothing."""


def _ignore(record: tuple[int, ...]) -> None:
    """Take a record of a run without tracing."""


def all_of(names: Sequence[str]) -> str:
    """One name for several agents, as `agent_0 .. agent_3`; "" for none."""
    return f"{names[0]} .. {names[-1]}" if len(names) > 1 else "".join(names)


def open_trace(config: Config, role: str, name: str = "") -> Trace | NoTrace:
    """The trace of a role in this process; a `NoTrace` unless `telemetry.trace` is set."""
    if not config.telemetry.trace:
        return NoTrace()
    assert config.run_dir is not None  # the configuration of a run names its folder
    return Trace(Path(config.run_dir) / PARTS, role, name, config.telemetry.trace_events)


def save_or_say(trace: Trace | NoTrace) -> None:
    """Save in a child process; a failure is printed into its output file, and the process goes on."""
    try:
        trace.save()
    except OSError as error:
        print(f"the trace could not be written ({error}): make room", file=sys.stderr)


def remove_parts(run_dir: Path) -> None:
    """Remove the parts that an earlier run in this folder left when it was killed."""
    manifest.remove_below(run_dir / PARTS)


def merge(run_dir: Path) -> Path | None:
    """Put the parts of all processes into RUN/trace.json and remove them.

    The file has Chrome's trace event format: complete events with `cat` (role) and `args` (role, agent), times in
    microseconds since the first span of the run. The part of a killed process ends with its last `Trace.save`.

    Returns:
        The path of the file; None if there are no parts.

    Raises:
        OSError: the file could not be written.
        ReadError: a part could not be read.
    """
    parts = [read_json(path) for path in sorted((run_dir / PARTS).glob("[!.]*.json"))]
    if not parts:
        return None
    begin = min(start for part in parts for _, start, _ in part["spans"])
    tracks: dict[int, int] = {}  # process -> number of its tracks so far; a process can have several roles
    path = RunFolder(run_dir).trace
    with manifest.written(path) as binary:
        file = io.TextIOWrapper(binary, "utf-8")
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for part in parts:
            pid = part["pid"]
            track = tracks[pid] = tracks.get(pid, 0) + 1
            where = {"pid": pid, "tid": track}
            name = part["name"] if sum(other["pid"] == pid for other in parts) == 1 else "main"
            for what, text in (("process_name", name), ("thread_name", part["name"])):
                file.write(json.dumps({"name": what, "ph": "M", **where, "args": {"name": text}}) + ",\n")
            heads = [
                json.dumps(
                    {"name": kind, "cat": part["role"], "ph": "X", **where}
                    | {"args": {"role": part["name"], "agent": agent}}
                )[:-1]
                for kind, agent in part["kinds"]
            ]
            for number, start, end in part["spans"]:
                file.write(f'{heads[number]}, "ts": {(start - begin) / 1e3:.3f}, "dur": {(end - start) / 1e3:.3f}}},\n')
        file.write(json.dumps({"name": "end", "ph": "M", "pid": parts[0]["pid"], "tid": 0, "args": {}}) + "\n]}\n")
        file.detach()  # flushes, and leaves the file open for `manifest.written`
    remove_parts(run_dir)
    return path
