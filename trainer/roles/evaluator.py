"""The evaluator: greedy episodes on fresh environments.

Runs in: a process of its own with a lower priority; in the main process for `sequential` and after training.
Receives: requests (frames at which the weights were taken) through a pipe, the weights through shared memory.
Sends: returns through the pipe; the best policy so far, and videos, into the run's folder.
Waits for: the next request.
Stops when: its pulse says so, at its next step; the pipe closes; the parent's death.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trainer import envs
from trainer.config.instances import env_of_others
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvSpec, life
from trainer.host import seeds
from trainer.host.errors import error_text
from trainer.memory.pulse import FILMING, signs_of
from trainer.roles import child, filming
from trainer.roles.greedy import Beginning, Episodes, Players, evaluate, info_means
from trainer.roles.policies import header_of, save_policy
from trainer.run_folder import manifest
from trainer.run_folder.checkpoint import best_policy, whole
from trainer.selfplay.opponents import opponents_of_evaluation
from trainer.telemetry.trace import all_of, open_trace, save_or_say

IDLE_S = 0.5  # most seconds between two signs of life of an evaluator that waits for a request
PARTS = ("returns", "lengths", "predicted", "discounted", "begun")  # of `Episodes`


@dataclass(frozen=True)
class Evaluation:
    """Result of greedy episodes.

    Args:
        frames: training frames when the weights were taken.
        returns: of each episode, unclipped.
        lengths: steps of each episode.
        seconds: wall time that it took.
        taken_at: `time.monotonic()` when the weights were taken.
        predicted: value of the first action of each episode, as the network saw it; NaN of an actor.
        discounted: return that came of it, discounted, with rewards as they are trained on.
        begun: how each episode of an actor began, until the learner's critics have judged it; else None.
        best: whether no mean before was above its.
        problem: why the best policy could not be kept.
        cut: of the episodes those that had not ended at `evaluator.max_episode_steps`.
        asked: episodes that were asked for; a sub-environment whose episode is cut plays no further.
        by_agent: mean return of each, where there are several; the lists then hold one agent's episodes after the
            other's.
        video: of an episode of these weights.
        no_video: why there is none, if there was to be one.
        info: mean of each scalar that `info` held at the ends of these episodes, by its name.
        pid: of the process that played them.
    """

    frames: int
    returns: list[float]
    lengths: list[int]
    seconds: float
    taken_at: float
    predicted: list[float]
    discounted: list[float]
    begun: list[Beginning | None] = field(default_factory=list)
    best: bool = False
    problem: str = ""
    cut: int = 0
    asked: int = 0
    by_agent: dict[str, float] = field(default_factory=dict)
    info: dict[str, float] = field(default_factory=dict)
    video: Path | None = None
    no_video: str = ""
    pid: int = field(default_factory=os.getpid)

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def overestimation(self) -> float:
        """Mean of predicted less discounted return; above 0: too much is promised (van Hasselt et al. 2016)."""
        return float(np.mean(np.subtract(self.predicted, self.discounted)))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))


class Judge:
    """Evaluates weights on environments of its own and keeps the best policy in the run's folder.

    Args:
        config: the run.
        agents: configuration and spec of each agent.
        run_dir: the run's folder; what is the best so far stands there.
        watch: as `evaluate` takes it.
    """

    def __init__(
        self, config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path,
        watch: Callable[[list[Episodes]], bool] | None = None,
    ) -> None:  # fmt: skip
        self._config, self._folder, self._watch = config, RunFolder(run_dir), watch
        self._agents = agents
        self._header: dict[str, Any] = {}
        self._players, self._best = Players(agents), -np.inf
        self._kept: Tensor | None = None  # what another process has found the best, until it is played here
        kept = whole(best_policy(self._folder), print, "weights", "eval_return_mean")
        if kept is not None:
            evaluated = not np.isnan(kept["eval_return_mean"])  # else any is better
            self._kept = kept["weights"] if evaluated else None
        self._world = world_of(config, min(config.evaluator.num_envs, config.evaluator.episodes))
        self.agents = all_of(self._world.agents)

    def evaluate(self, weights: Tensor, frames: int, taken_at: float) -> Evaluation | None:
        """Play greedy episodes with `weights`, float32 [sum of numel], always with the same seeds.

        A best policy that another process has found is played here first: its mean return is of other environments,
        which may differ by what their constructors draw.

        Returns:
            The evaluation; None if `watch` returned False.
        """
        start = time.monotonic()
        if self._kept is not None:
            again = self._play(self._kept)
            if again is None:
                return None
            self._kept, self._best = None, float(np.mean([value for episodes in again for value in episodes.returns]))
        played = self._play(weights)
        if played is None:
            return None
        joint = [list(chain.from_iterable(getattr(episodes, part) for episodes in played)) for part in PARTS]
        mean = float(np.mean(joint[0]))
        best, problem = mean >= self._best, ""  # of equally good ones the newest, which has learned longest
        if best:
            self._best = mean
            try:
                self._keep(frames, joint[0])
            except OSError as error:
                problem = str(error)
        by_agent = dict(zip(self._world.agents, (float(np.mean(episodes.returns)) for episodes in played), strict=True))
        returns, lengths, predicted, discounted, begun = joint
        return Evaluation(
            frames, returns, lengths, time.monotonic() - start, taken_at, predicted, discounted, begun, best,
            problem, sum(episodes.cut for episodes in played), self._config.evaluator.episodes * len(played),
            by_agent if len(played) > 1 else {}, info_means(played),
        )  # fmt: skip

    def film(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation that was made last, with a video of another episode of its weights."""
        path = self._folder.videos / f"frames_{evaluation.frames:012d}.mp4"
        seed = seeds.of_evaluation(self._config.seed)
        problem = filming.film(self._config, self._players, world_of, seed, path, self._watch)
        return replace(evaluation, video=None if problem else path, no_video=problem)

    def _keep(self, frames: int, returns: list[float]) -> None:
        """Write the weights that have just been played as the best policy, and remove that of an older trainer."""
        names = self._world.agents
        self._header = self._header or header_of(self._config, names, self._agents, self._folder.path)
        measured = {
            "eval_return_mean": float(np.mean(returns)), "eval_return_std": float(np.std(returns)),
            "eval_episodes": len(returns),
        }  # fmt: skip
        save_policy(self._folder.best_policy, self._header, self._players.flat, frames, measured)
        manifest.remove(self._folder.older_best_policy)

    def _play(self, weights: Tensor) -> list[Episodes] | None:
        """All of the episodes, or None."""
        self._players.load(weights)
        going_on = True

        def watch(played: list[Episodes]) -> bool:
            nonlocal going_on
            going_on = self._watch is None or self._watch(played)
            return going_on

        seed = seeds.of_evaluation(self._config.seed)
        played = evaluate(self._players, self._world, self._config.evaluator.episodes, seed, watch=watch)
        return played if going_on else None

    def close(self) -> None:
        """Close the environments."""
        self._world.close()


def world_of(config: Config, num_envs: int, render_mode: str | None = None) -> Any:
    """The environments of an evaluation; a game's opponents are `opponents.evaluate_against`."""
    if render_mode == "rgb_array" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame complains that it has no screen
    seeds.seed_globals(config.seed, "evaluator")  # what constructors draw: the same world in every evaluation
    world = envs.make_world(env_of_others(config), num_envs, render_mode=render_mode)
    if envs.against_opponents(config.env):
        world.opponents = opponents_of_evaluation(config)
    return world


def _request(pipe: Connection, beat: Callable[[], None], idle_s: float) -> tuple[int, float, bool]:
    """Wait for the next request, and give signs of life meanwhile, so that one that hangs as it starts is noticed."""
    beat()
    while not pipe.poll(idle_s):
        beat()
    request: tuple[int, float, bool] = pipe.recv()
    return request


def run(
    config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, weights: Tensor, pulse: Tensor,
    pipe: Connection,
) -> None:  # fmt: skip
    """Body of the process: a request `(frames, taken_at, filmed)` is answered by an `Evaluation` or an error text.

    Args:
        config: the run.
        agents: configuration and spec of each agent.
        run_dir: the run's folder.
        weights: float32 [sum of numel] in shared memory; the main process writes it before a request only.
        pulse: of this process (`trainer.memory.pulse`).
        pipe: to the main process.
    """
    child.begin(config, "evaluator")
    os.nice(config.evaluator.nice)
    beat, ending = signs_of(pulse)
    idle_s = min(IDLE_S, config.faults.hang_seconds / 4)
    life.tell(beat)

    def watch(_: object) -> bool:
        beat()
        return not ending()

    try:
        judge, trace = Judge(config, agents, run_dir, watch), open_trace(config, "evaluator")
        with closing(judge):
            trace.follow(judge, "evaluate", "evaluate", judge.agents)
            while True:
                frames, taken_at, filmed = _request(pipe, beat, idle_s)
                if (evaluation := judge.evaluate(weights, frames, taken_at)) is None:
                    return
                save_or_say(trace)  # now, for this process may be ended from without
                if filmed:
                    pulse[FILMING] = 1.0
                    evaluation = judge.film(evaluation)
                    pulse[FILMING] = 0.0
                pipe.send(evaluation)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process closed its end
    except BaseException as error:  # what a user's environment raises, SystemExit too
        child.tell(pipe, error_text(error))
