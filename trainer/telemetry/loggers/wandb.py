"""Weights & Biases: metrics over frames. A thread of its own calls it, so the run goes on if W&B hangs or dies."""

from __future__ import annotations

import netrc
import os
import queue
import re
import secrets
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainer.config.fields import ConfigError
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event, RunInfo, plain_value
from trainer.telemetry.rows import Row

if TYPE_CHECKING:
    import wandb

MODES = ("auto", "online", "offline", "disabled")
CLOSE_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 3.0
INIT_TIMEOUT_S = 30.0


class WandbSink:
    """Queues rows for a background thread, the only one that calls W&B.

    A failure of W&B is reported once, then the sink is off. A full queue drops its oldest row. RUN/wandb_id.txt has the
    run's id in W&B, so a resumed run goes on under it.

    Args:
        config: the section `logger`.
        run: the run.
        notify: takes reports; called from the thread.
        capacity: rows that the queue holds.
        close_timeout_s: how long `close` waits for the upload, in seconds.

    Raises:
        ConfigError: an unknown `logger.wandb_mode`.
    """

    def __init__(
        self,
        config: LoggerConfig,
        run: RunInfo,
        notify: Callable[[str], None],
        capacity: int = 1_000,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        if config.wandb_mode not in MODES:
            raise ConfigError(f"logger.wandb_mode={config.wandb_mode} is unknown: choose one of {', '.join(MODES)}.")
        self.dropped_rows = 0
        self._config, self._run, self._notify = config, run, notify
        self._close_timeout_s = close_timeout_s
        self._id = _run_id(run.run_dir)
        self._off = False
        self._abandoned = False  # `close` has given up on W&B and reported it
        self._queue: queue.Queue[Row | _Video | _Close] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        """Queue the numbers of one row, without unknown values; returns at once."""
        if not self._off:
            plain = {key: plain_value(value) for key, value in row.items()}
            self._put({key: value for key, value in plain.items() if isinstance(value, int | float)})

    def event(self, event: Event) -> None:
        """Queue the video of an event; the text of events is in log.txt."""
        if event.video is not None and not self._off:
            self._put(_Video(event.video, event.frames))

    def close(self, summary: dict[str, Any]) -> None:
        """Send summary and pictures, and wait a few seconds at most; then the processes of W&B are killed."""
        if not self._off:
            self._put(_Close(dict(summary)))
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            self._abandoned = True
            self._notify(
                f"warning: Weights & Biases did not finish within {self._close_timeout_s:g} s and was stopped;"
                f" send what is missing with `wandb sync {self._run.run_dir / 'wandb'}/*run-*-{self._id}`"
            )
            for pid in service_pids():
                os.kill(pid, signal.SIGKILL)
            self._thread.join(1.0)  # its calls of W&B fail now, and it goes on to `_teardown`
        if self.dropped_rows:
            self._notify(f"warning: Weights & Biases was too slow for {self.dropped_rows} rows, metrics.jsonl has all")

    def _put(self, item: Row | _Video | _Close) -> None:
        while True:
            try:
                self._queue.put_nowait(item)
                return
            except queue.Full:
                try:
                    self._queue.get_nowait()
                    self.dropped_rows += 1
                except queue.Empty:
                    continue  # the thread has just emptied it

    def _work(self) -> None:
        self._attempt(self._log_rows)
        # Ends W&B's service and removes its hook at the interpreter's exit, which raises if the service is dead.
        self._attempt(_teardown)

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever W&B raises, the run goes on; the first error is reported
            if not self._off and not self._abandoned:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self._notify(f"warning: Weights & Biases failed ({reason}) and is off; training goes on without it")
            self._off = True

    def _log_rows(self) -> None:
        wandb_run = self._start()
        while not isinstance(item := self._queue.get(), _Close):
            wandb_run.log(item.as_row() if isinstance(item, _Video) else item)
        self._finish(wandb_run, item.summary)

    def _start(self) -> wandb.Run:
        import wandb  # here, in the thread, as it takes a second

        settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S)
        server = wandb.setup(settings).settings.base_url  # set up silently first: the terminal shows the live view
        mode, reason = choose_mode(
            self._config.wandb_mode, os.environ, lambda: has_credentials(server), lambda: reachable(server)
        )
        if mode == "online" and not has_credentials(server):
            raise RuntimeError("no API key, log in with `wandb login` or set logger.wandb_mode=offline")
        wandb_run = wandb.init(
            project=self._config.wandb_project,
            entity=self._config.wandb_entity,
            group=self._config.wandb_group,
            tags=self._config.wandb_tags or None,
            name=self._run.run_dir.name,
            id=self._id,
            resume="allow",
            dir=str(self._run.run_dir),
            config=self._run.config,
            mode=mode,  # type: ignore[arg-type]
            settings=settings,
        )
        wandb_run.define_metric("frames")
        wandb_run.define_metric("*", step_metric="frames")
        if mode == "online":
            self._notify(f"Weights & Biases: {wandb_run.url}")
        elif mode == "offline":
            because = f" ({reason})" if reason else ""
            self._notify(f"Weights & Biases is offline{because}; upload with `wandb sync {Path(wandb_run.dir).parent}`")
        return wandb_run

    def _finish(self, wandb_run: wandb.Run, summary: dict[str, Any]) -> None:
        import wandb

        for name in ("curve", "league"):
            picture = self._run.run_dir / f"{name}.png"
            if picture.exists():
                wandb_run.log({name: wandb.Image(str(picture))})
        for key, value in summary.items():
            wandb_run.summary[key] = value
        wandb_run.finish(exit_code=1 if summary.get("status") == "failed" else 0)


@dataclass(frozen=True)
class _Video:
    """A video, and the frames at which the policy was taken that it shows."""

    path: Path
    frames: int

    def as_row(self) -> dict[str, Any]:
        import wandb

        return {"eval_video": wandb.Video(str(self.path), format="mp4"), "frames": self.frames}


class _Close:
    """The queue's last item."""

    def __init__(self, summary: dict[str, Any]) -> None:
        self.summary = summary


def choose_mode(
    wanted: str, environ: Mapping[str, str], credentials: Callable[[], bool], reachable: Callable[[], bool]
) -> tuple[str, str]:
    """The mode for `wandb.init`, and the reason where "auto" becomes offline.

    Args:
        wanted: `logger.wandb_mode`; returned as it is unless "auto".
        environ: environment variables; WANDB_MODE, if set, decides "auto".
        credentials: whether there is an API key.
        reachable: whether the server answers; called only if there is a key.
    """
    if wanted != "auto":
        return wanted, ""
    if environ.get("WANDB_MODE"):
        return environ["WANDB_MODE"], "WANDB_MODE says so"
    if not credentials():
        return "offline", "no API key"
    if not reachable():
        return "offline", "its server does not answer"
    return "online", ""


def has_credentials(server: str) -> bool:
    """Whether W&B will find an API key for `server` (a URL), in environment variables or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        hosts = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):  # W&B does not read it either
        return False
    # The public server has had several names; W&B still takes keys for the oldest one.
    return urlsplit(server).netloc in hosts or ("WANDB_BASE_URL" not in os.environ and "api.wandb.ai" in hosts)


def reachable(server: str, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether `server` (a URL) answers an HTTP request within the timeout, through the environment's proxy if any."""
    try:
        urllib.request.urlopen(server, timeout=timeout_s).close()
    except urllib.error.HTTPError:
        return True  # an error page is an answer
    except OSError:
        return False
    return True


def _run_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id.txt"
    found = path.read_bytes().strip() if path.exists() else b""
    if re.fullmatch(rb"[A-Za-z0-9_-]{1,64}", found):  # else the file is damaged, and W&B gets a new run
        return found.decode()
    new = secrets.token_hex(4)
    path.write_text(new + "\n")
    return new


def _teardown() -> None:
    import wandb

    wandb.teardown()


def service_pids() -> list[int]:
    """Ids of the living wandb-core processes among this process's children; needs Linux, else empty."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" (", 1)
        except OSError:
            continue  # the process has just ended
        name, fields = rest.rsplit(") ", 1)
        state, parent = fields.split()[:2]
        if name == "wandb-core" and int(parent) == os.getpid() and state != "Z":
            pids.append(int(pid))
    return pids


def open_wandb(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> WandbSink:
    """The sink behind LOGGERS["wandb"]."""
    return WandbSink(config, run, notify)
