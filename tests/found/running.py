"""A real main that runs while a test does something to it, and what it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import QUICK, command, environment

WAIT_S = 90.0  # for what takes a second; others use the machine too


class Running:
    """A run of the main, its folder, and the lines that its environments log.

    Args:
        folder: of the test.
        words: of the command line, besides those of a quick run.
        before: of the command that starts the main.
    """

    def __init__(self, folder: Path, *words: str, before: Sequence[str] = ()) -> None:
        self.run_dir, self.logged = folder / "run", folder / "logged.jsonl"
        self.logged.touch()
        named = {word.partition("=")[0] for word in words}
        plain = [word for word in QUICK if word.partition("=")[0] not in named]
        words = (*plain, f"run_dir={self.run_dir}", "env.import_modules=[hurting_processes]", *words)
        self.process = subprocess.Popen(
            [*before, *command(*words)], cwd=folder, env=environment(FOUND_LOG=str(self.logged)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.said = ""

    def rows(self) -> list[dict[str, Any]]:
        """What environments have logged."""
        return [json.loads(line) for line in self.logged.read_text().splitlines()]

    def events(self) -> str:
        """RUN/log.txt."""
        path = self.run_dir / "log.txt"
        return path.read_text() if path.exists() else ""

    def metrics(self) -> list[dict[str, Any]]:
        """The whole rows of RUN/metrics.jsonl."""
        path = self.run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition holds; what it gave."""
        deadline = time.monotonic() + WAIT_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"gave up waiting:\n{self.events()}"
            assert self.process.poll() is None, f"ended too early:\n{self.process.communicate()[0]}"
            time.sleep(0.05)
        return found

    def collected(self) -> int:
        """Frames of the newest row."""
        return max((row.get("frames", 0) for row in self.metrics()), default=0)

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        self.said += self.process.communicate(timeout=WAIT_S)[0]
        return self.process.returncode

    def alive(self) -> list[int]:
        """Every process that it started, directly or not: all inherit a variable."""
        variable, found = f"FOUND_LOG={self.logged}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if variable in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return sorted(found)

    def children(self) -> dict[str, int]:
        """Process ids by role, of those that RUN/log.txt or /proc tells: `server`, and all that came from it."""
        server = next((pid for pid in offspring(self.process.pid) if b"forkserver" in cmdline(pid)), 0)
        return {"server": server, **{str(i): pid for i, pid in enumerate(offspring(server))}}


def offspring(pid: int) -> list[int]:
    """Children of a process, in the order of their start."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.name))
    return sorted(found)


def cmdline(pid: int) -> bytes:
    """Of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def running(folder: Path, *words: str, before: Sequence[str] = ()) -> Iterator[Running]:
    """A run that is ended with the test, whatever happens; nothing of it stays."""
    folder.mkdir(exist_ok=True)
    run = Running(folder, *words, before=before)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        for pid in run.alive():
            os.kill(pid, signal.SIGKILL)
