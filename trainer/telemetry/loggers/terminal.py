"""The terminal: a live view, or plain lines where the output is a file or a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.config.sections import LoggerConfig
from trainer.host.saying import silence
from trainer.telemetry.loggers.sink import Event, RunInfo
from trainer.telemetry.loggers.view import Newest, closing_lines, panel, plain_line
from trainer.telemetry.rows import Row, kind

PLAIN_PERIOD_S = 5.0  # at least this time lies between two plain lines of metrics


class TerminalSink:
    """Shows the newest metrics; events scroll above them.

    When the output goes away (a broken pipe, a closed terminal or stream) the sink reports it once and turns off.

    Args:
        run: the run.
        notify: takes that report.
        live: whether to draw the live view, else plain lines.
        stream: where to write, standard output by default.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        run: RunInfo,
        notify: Callable[[str], None],
        live: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._notify = notify
        self._clock = clock
        self._stream = sys.stdout if stream is None else stream
        self._is_stdout = self._stream is sys.stdout  # asked here, as the live view replaces sys.stdout
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="replace")  # an ASCII terminal shows ? instead of ending the run
        self._on = True
        self._newest = Newest()
        self._next_line_at = self._next_progress_at = -float("inf")
        self._progress = ""  # the text of `Loggers.progress`, or ""
        self._live: Live | None = None
        if live:
            # Without a refreshing thread, as nothing could catch the error of a broken pipe there.
            console = _PipeConsole(file=self._stream, force_terminal=True)
            view = Live(console=console, auto_refresh=False)
            self._guarded(view.start)
            if self._on:
                self._live = view

    def write(self, row: Row) -> None:
        """Show one row: redraw the view, or print a line if the last one is old enough."""
        self._newest.add(row)
        if kind(row) == "training":  # training goes on, so what took long has ended
            self._progress = ""
        if self._live is not None:
            self._draw()
        elif self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + PLAIN_PERIOD_S
            self._print(f"{time.strftime('%H:%M:%S')} {plain_line(self._newest, self._run)}")

    def event(self, event: Event) -> None:
        """Print the first line of an event above the view; a passing one is shown as `Loggers.progress` says."""
        if event.passing:
            self._show_progress(event)
            return
        role = "" if event.role == "main" else f"[{event.who}] "
        text, *rest = event.text.splitlines() or [""]
        more = f" ({len(rest)} more lines in {self._run.run_dir / 'log.txt'})" if rest else ""
        self._print(f"{event.time:%H:%M:%S} {role}{text}{more}")

    def close(self, summary: dict[str, Any]) -> None:
        """Leave the last view on the screen, show the cursor again and print how the run ended."""
        if self._live is not None:
            if self._progress and self._on:
                self._progress = ""
                self._draw()
            self._guarded(self._live.stop)
        for line in closing_lines(self._run, summary):
            self._print(line)

    def _show_progress(self, event: Event) -> None:
        self._progress = event.text
        if self._live is not None:
            self._draw()
        elif self._progress and self._clock() >= self._next_progress_at:
            self._next_progress_at = self._clock() + PLAIN_PERIOD_S
            self._print(f"{event.time:%H:%M:%S} {event.text}")

    def _draw(self) -> None:
        view = panel(self._newest, self._run, self._progress)
        assert (live := self._live) is not None
        self._guarded(lambda: live.update(view, refresh=True))

    def _print(self, line: str) -> None:
        if self._live is not None:
            console = self._live.console
            style = "yellow" if "warning" in line else None
            self._guarded(lambda: console.print(Text(line, style=style or ""), soft_wrap=True))
        else:
            self._guarded(lambda: print(line, file=self._stream, flush=True))

    def _guarded(self, call: Callable[[], None]) -> None:
        if not self._on:
            return
        if self._stream.closed:
            self._turn_off("its stream is closed")
            return
        try:
            call()
        except OSError as error:
            self._turn_off(str(error))

    def _turn_off(self, why: str) -> None:
        self._on = False
        self._notify(f"warning: the terminal went away ({why}); training goes on, log.txt and metrics.jsonl are kept")
        if self._is_stdout and not self._stream.closed:
            silence(self._stream)
        if self._live is not None:
            self._live.console.quiet = True
            self._live.stop()  # writes nothing any more, but restores sys.stdout and sys.stderr


class _PipeConsole(Console):
    """A console that raises at a broken pipe, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Called inside rich's except block."""
        raise  # noqa: PLE0704


def open_terminal(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> TerminalSink:
    """The sink behind LOGGERS["terminal"]; with "auto" it is live on a terminal that can move its cursor."""
    capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    return TerminalSink(run, notify, live=config.terminal == "live" or (config.terminal == "auto" and capable))
