"""A run in its folder, finished or going on: its configuration, rows, policies and replay."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config.fields import ConfigError
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.reading import ReadError, read_json, read_jsonl, read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainer.api.policy import Policy
    from trainer.replay.buffer import StreamReplay


@dataclass(frozen=True)
class Run:
    """A run; each attribute is read from its folder when it is asked for.

    Args:
        path: the run's folder, absolute.
    """

    path: Path

    @property
    def config(self) -> Config:
        """The configuration, every key of it, as `run.config.learner.learning_rate`.

        Raises:
            ConfigError: it cannot be read.
        """
        return from_yaml(RunFolder(self.path).config)

    @property
    def summary(self) -> dict[str, Any]:
        """What RUN/summary.json says: `status`, `reason`, `frames`, `eval_return_mean` and more (docs/metrics.md).

        Of a run that has none yet only the `status`: `running`, or `killed`.

        Raises:
            ReadError: it is damaged.
        """
        path = RunFolder(self.path).summary
        known = read_json(path) if path.exists() else {"status": "running"}
        return {**known, "status": "killed"} if known.get("status") == "running" and not self.is_running else known

    @property
    def is_running(self) -> bool:
        """Whether a process of this machine, or of one with the same disk, trains it now."""
        try:
            with open(RunFolder(self.path).lock) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows so far, a dict each, in their order; `pandas.DataFrame(run.metrics)` makes a table of them.

        Raises:
            ReadError: there are none.
        """
        return read_jsonl(RunFolder(self.path).metrics)[0]

    @property
    def commands(self) -> list[str]:
        """The command lines that started and resumed it."""
        return read_text(RunFolder(self.path).command).splitlines()

    def policy(self, which: str = "best", agent: str | None = None) -> Policy:
        """A policy of the run; see `trainer.load_policy`."""
        from trainer.api.policy import load_policy

        return load_policy(self.path, which, agent)

    def evaluate(
        self, episodes: int = 100, which: str = "best", seed: int | None = None, num_envs: int | None = None
    ) -> dict[str, Any]:
        """Play greedy episodes in this process, as `python -m trainer.eval` does.

        Args:
            episodes: how many.
            which: policy, `best` or `last`.
            seed: of the first environment; None: that of the command.
            num_envs: environments stepped together; None: that of the command.

        Returns:
            `eval_return_mean`, `eval_return_std`, `returns` and more (`trainer.api.evaluation.evaluated`).

        Raises:
            ConfigError, ReadError, EnvError: the policy could not be read, or the environment failed.
        """
        from trainer.api import evaluation, sources

        seed = evaluation.SEED if seed is None else seed
        num_envs = evaluation.NUM_ENVS if num_envs is None else num_envs
        return evaluation.evaluated(sources.of_run(self.path, which), episodes, seed, num_envs)

    def replay(self, agent: str | None = None, batch_size: int | None = None) -> StreamReplay:
        """The replay as it was at the newest checkpoint, to sample from: TorchRL's buffer that the learner uses.

        It reads the files of the run's folder in place and writes nothing. While the run goes on, its oldest rows may
        be written over: ask for it again after the next checkpoint.

        Args:
            agent: whose, where there are several, or in `schedule=shared_gradient`; None: the only one.
            batch_size: of `sample()`; None: that of the learner.

        Raises:
            ConfigError: there is no such agent, or the replay was not kept.
            ReadError: there is no checkpoint yet, or a file is missing or damaged.
        """
        from trainer.api.replays import open_copy

        return open_copy(self.path, self.config, agent, batch_size)

    def plot(self) -> Figure:
        """The learning curve, as `python -m trainer.plot` draws it; a notebook shows it.

        Raises:
            ReadError: there are no rows to draw.
        """
        from trainer.telemetry.plot import draw, read_runs

        return draw(read_runs([self.path]))

    def __repr__(self) -> str:
        try:
            found = self.summary
        except ReadError:
            found = {}
        what = [f"{found[key]:g} {words}" for key, words in SHOWN.items() if isinstance(found.get(key), int | float)]
        return f"Run({str(self.path)!r}: {', '.join([str(found.get('status', 'damaged')), *what])})"


SHOWN = {"frames": "frames", "eval_return_mean": "mean return"}


def load(run: str | os.PathLike[str]) -> Run:
    """A run by its folder, whether it is finished, goes on, or was killed.

    Raises:
        ConfigError: there is no run in the folder.
    """
    path = Path(run).absolute()
    if not RunFolder(path).config.is_file():
        raise ConfigError(f"{path} is no run's folder: it has no config.yaml")
    return Run(path)
