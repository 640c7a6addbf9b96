"""Greedy evaluation: whose returns are counted, what the process answers, which policy it keeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from trainer import envs
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import Config, EnvConfig, EvaluatorConfig
from trainer.envs.counting import episode_length, expected_reward
from trainer.envs.world import Solo
from trainer.host.errors import split_error
from trainer.memory.pulse import new_pulse
from trainer.roles import evaluator
from trainer.roles.evaluator import Evaluation
from trainer.roles.greedy import Players, evaluate
from trainer.run_folder import checkpoint
from trainer.training.processes import use_fork_server

LONGEST = 7


def counting(num_envs: int, clip_rewards: bool = False, frame_stack: int = 1, **kwargs: Any) -> tuple[Players, Any]:
    """A policy and the environments that it is to act in."""
    env = EnvConfig(
        id="Counting",
        backend="counting",
        kwargs={"max_length": LONGEST, **kwargs},
        frame_stack=frame_stack,
        clip_rewards=clip_rewards,
    )
    config = Config(env=env, algorithm=DQNConfig(hidden_sizes=[8]))
    vector = envs.make(env, num_envs)
    return Players([(config, vector.spec)]), Solo(vector)


def expected(episodes: int, num_envs: int, seed: int) -> list[tuple[float, int]]:
    """(return, length) of the episodes that count: sub-environment i plays number i, i + N, i + 2 N and so on."""
    found = []
    for i in range(num_envs):
        for episode in range(len(range(i, episodes, num_envs))):
            length = int(episode_length(seed + i, episode, max_length=LONGEST))
            steps = np.arange(1, length + 1)
            found.append((float(expected_reward(seed + i, episode, steps).sum()), length))
    return sorted(found)


@pytest.mark.parametrize(("episodes", "num_envs"), [(20, 20), (7, 3), (3, 3), (1, 1), (25, 4)])
def test_every_environment_plays_its_share_and_no_episode_counts_twice(episodes, num_envs):
    policy, vector = counting(num_envs)
    (played,) = evaluate(policy, vector, episodes, seed=40)
    assert sorted(zip(played.returns, played.lengths, strict=True)) == expected(episodes, num_envs, seed=40)


def test_returns_are_unclipped_and_masks_and_stacks_are_kept_to():
    policy, vector = counting(3, clip_rewards=True, frame_stack=4, with_mask=True, num_actions=5)
    (played,) = evaluate(policy, vector, 30, seed=2)  # an illegal action would be an EnvError
    assert sorted(zip(played.returns, played.lengths, strict=True)) == expected(30, 3, seed=2)


def test_the_same_seed_gives_the_same_episodes_on_used_environments():
    policy, vector = counting(2)
    assert evaluate(policy, vector, 5, seed=9) == evaluate(policy, vector, 5, seed=9)


def test_an_episode_without_end_is_cut_and_counted_once():
    policy, vector = counting(2, min_length=LONGEST)
    policy.configs[0] = replace(policy.configs[0], evaluator=EvaluatorConfig(max_episode_steps=4))
    (played,) = evaluate(policy, vector, 6, seed=0)
    assert played.lengths == [4, 4] and played.cut == 2
    assert played.returns == [float(expected_reward(stream, 0, np.arange(1, 5)).sum()) for stream in range(2)]


def test_the_policy_takes_weights_in_the_order_of_the_board():
    policy, other = counting(1)[0], counting(1)[0]
    policy.load(torch.randn(len(policy.flat)))
    assert not torch.equal(policy.flat, other.flat)
    other.load(policy.flat)
    x = torch.randn(5, 4)
    assert torch.equal(policy.networks[0](x), other.networks[0](x))


def test_mean_and_standard_deviation_of_an_evaluation():
    result = Evaluation(
        frames=10,
        returns=[1.0, 2.0, 6.0],
        lengths=[1, 2, 6],
        seconds=0.1,
        taken_at=5.0,
        predicted=[4.0, 5.0, 3.0],
        discounted=[1.0, 2.0, 3.0],
    )
    assert result.overestimation == 2.0
    assert result.mean == 3.0 and result.std == pytest.approx(np.sqrt(14 / 3)) and not result.best


# ------------------------------------------------------------------ the process


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Callable[[Config], tuple[Any, Connection, torch.Tensor]]]:
    """Starts the evaluator's process; gives it, the pipe to it, and the weights that it reads."""
    use_fork_server()
    context, started = mp.get_context("forkserver"), []

    def start(config: Config) -> tuple[Any, Connection, torch.Tensor]:
        spec = envs.describe(config.env)
        weights, pulse = Players([(config, spec)]).flat.share_memory_(), new_pulse()
        pipe, theirs = context.Pipe()
        process = context.Process(
            target=evaluator.run, args=(config, [(config, spec)], tmp_path, weights, pulse, theirs), daemon=True
        )
        process.start()
        theirs.close()
        started.append((process, pipe))
        return process, pipe, weights

    yield start
    for process, pipe in started:
        pipe.close()
        process.join(30)
        process.kill()


def answer(pipe: Connection) -> Any:
    assert pipe.poll(60), "no answer"
    return pipe.recv()


def test_the_process_evaluates_what_is_asked_and_keeps_the_best_policy(remote, tmp_path):
    own = EvaluatorConfig(episodes=3, num_envs=3, nice=7)
    config = Config(seed=4, algorithm=DQNConfig(hidden_sizes=[]), evaluator=own)
    process, pipe, weights = remote(config)
    spec = envs.describe(config.env)
    # Flat weights of Q(s) = W s + b: the bias [2], then W [2, 4]; CartPole shows (x, v, angle, angular velocity).
    always_left = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    balancing = torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 0.1, 1, 0.5])
    means, best = [], []
    for frames, flat in enumerate((always_left, balancing, always_left)):
        weights.copy_(flat)
        asked = time.monotonic()
        pipe.send((frames, asked, False))
        result = answer(pipe)
        assert (result.frames, result.taken_at, len(result.returns)) == (frames, asked, 3)
        assert result.returns == result.lengths and 0 < result.seconds < 60  # CartPole pays 1 a step
        means.append(result.mean)
        best.append(result.best)
        kept = checkpoint.load(tmp_path / "best" / "policy.safetensors")
        assert torch.equal(kept["weights"], always_left if frames == 0 else balancing)
        assert kept["frames"] == min(frames, 1) and kept["eval_return_mean"] == max(means)
    assert means[0] == means[2] < 15 < 100 < means[1]  # the same seed, so the same episodes
    assert best == [True, True, False]
    here = Players([(config, spec)])
    here.load(balancing)
    assert np.mean(evaluate(here, envs.make_world(config.env, 3), 3, 4_500_000)[0].returns) == means[1]
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 7
    pipe.close()
    process.join(30)
    assert process.exitcode == 0


def test_an_error_comes_back_as_its_traceback_and_cause(remote):
    env = EnvConfig(id="Counting", backend="counting", kwargs={"raise_at_step": 3, "min_length": 9})
    _, pipe, _ = remote(Config(env=env, evaluator=EvaluatorConfig(episodes=2, num_envs=2)))
    pipe.send((0, 0.0, False))
    traceback, cause = split_error(answer(pipe))
    assert "in evaluate" in traceback and "asked for by raise_at_step" in cause


def test_pictures_without_a_screen_are_drawn_without_a_complaint(small_config, monkeypatch, capfd):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    config = small_config(env={"id": "CartPole-v1", "backend": "gymnasium"})
    world = evaluator.world_of(config, 1, render_mode="rgb_array")
    world.reset(0)
    assert world.render().shape == (400, 600, 3)
    world.close()
    monkeypatch.delenv("SDL_VIDEODRIVER")
    assert "XDG_RUNTIME_DIR" not in capfd.readouterr().err
