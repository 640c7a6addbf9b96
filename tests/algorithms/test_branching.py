"""Branches: targets worked out by hand, and runs on more combinations of choices than a network could have outputs.

The toy: two observed numbers, a choice among 2 and one among 3, no hidden layer.

    online   Q_0(s) = (s_0, s_1)       Q_1(s) = (s_0 + s_1, s_0 - s_1, 2 s_1)
    target   Q'_0(s) = (2 s_0, -s_1)   Q'_1(s) = (s_0, s_1, -s_0)

    row  s       a       r   m  terminated  s'      Q(s, a)  Q(s')               Q'(s')              gamma = 0.5
    0    (1, 2)  (0, 2)  1   1  no          (3, 4)  (1, 4)   (3, 4), (7, -1, 8)  (6, -4), (3, 4, -3)
    1    (1, 2)  (1, 0)  2   1  yes         (3, 4)  (2, 3)
    2    (0, 5)  (1, 1)  -1  2  no          (2, 1)  (5, -5)  (2, 1), (3, 1, 2)   (4, -1), (2, 1, -2)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainer
from tests.api.test_export import RUNS
from tests.resuming import newest, stop_at
from tests.switches import Dials
from tests.test_schedules import differences, trained
from trainer.acting.exploration import EpsilonGreedy
from trainer.algorithms import Algorithm, build
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import Config, LearnerConfig
from trainer.envs import BranchedAction, EnvSpec, Leaf
from trainer.envs.spaces import action_of
from trainer.learning.feed import to_tensordict
from trainer.training.train import train

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), BranchedAction((2,), (2, 3)))
PADDED = [9.0, 9]  # the weights of branch 0's third choice, which it does not have
DOUBLE = [1 + 0.5 * (-4 - 3) / 2, 2, -1 + 0.25 * (4 + 2) / 2]  # the online network chooses (1, 2) and (0, 0)
SINGLE = [1 + 0.5 * (6 + 4) / 2, 2, -1 + 0.25 * (4 + 2) / 2]


def toy(**changes: Any) -> Algorithm:
    algorithm = build(DQNConfig(hidden_sizes=[], gamma=0.5, **changes), LearnerConfig(), TOY)
    key = ("module", "0", "module", "head", "layers", "0")
    for group, weight in (
        (algorithm.loss.value_network_params, [[1.0, 0], [0, 1], PADDED, [1, 1], [1, -1], [0, 2]]),
        (algorithm.loss.target_value_network_params, [[2.0, 0], [0, -1], PADDED, [1, 0], [0, 1], [-1, 0]]),
    ):
        group.get((*key, "weight")).data.copy_(torch.tensor(weight))
        group.get((*key, "bias")).data.zero_()
    return algorithm


def rows() -> dict[Any, torch.Tensor]:
    terminated = torch.tensor([[False], [True], [False]])
    return {
        "action": torch.tensor([[0, 2], [1, 0], [1, 1]]),
        "observation": torch.tensor([[1.0, 2], [1, 2], [0, 5]]),
        ("next", "observation"): torch.tensor([[3.0, 4], [3, 4], [2, 1]]),
        ("next", "reward"): torch.tensor([[1.0], [2], [-1]]),
        ("next", "terminated"): terminated,
        ("next", "truncated"): torch.zeros_like(terminated),
        ("next", "done"): terminated,
        "steps_to_next_obs": torch.tensor([[1], [1], [2]]),
    }


@pytest.mark.parametrize(
    ("double", "errors", "loss"),
    [
        # Huber: half the square up to 1, then the distance less one half.
        (True, [(1.75 + 4.75) / 2, (0 + 1) / 2, (5.25 + 4.75) / 2], [(1.25 + 4.25) / 2, 0.5 / 2, (4.75 + 4.25) / 2]),
        (False, [(2.5 + 0.5) / 2, (0 + 1) / 2, (5.25 + 4.75) / 2], [(2 + 0.125) / 2, 0.5 / 2, (4.75 + 4.25) / 2]),
    ],
)
def test_all_branches_have_one_target_the_mean_of_their_bootstraps(
    double: bool, errors: list[float], loss: list[float]
) -> None:
    assert DOUBLE == [-0.75, 2, -0.25] and SINGLE == [3.5, 2, -0.25]
    sample = to_tensordict(rows(), 3)
    assert toy(double=double).loss(sample)["loss"].item() == pytest.approx(sum(loss) / 3)
    assert sample["td_error"].tolist() == sample["priority"].tolist() == pytest.approx(errors)


def test_a_dueling_network_has_the_same_mean_in_every_branch_and_never_chooses_what_is_not_there() -> None:
    algorithm = build(DQNConfig(hidden_sizes=[8, 8], dueling=True), LearnerConfig(), TOY)
    values = algorithm.network(torch.randn(50, 2))
    assert torch.allclose(values[:, 0, :2].mean(-1), values[:, 1].mean(-1), atol=1e-6)
    assert (values[:, 0, 2] == -torch.inf).all() and values[:, :, :2].isfinite().all()
    action, best = algorithm.acting.choose(algorithm.network, [torch.randn(50, 2)], None, None)
    assert action.shape == (50, 2) and action[:, 0].max() <= 1 and best.shape == (50, 1)
    assert algorithm.policy(to_tensordict({"observation": torch.randn(5, 2)}, 5))["action"].shape == (5, 2)


def test_each_choice_is_replaced_with_probability_epsilon() -> None:
    greedy = EpsilonGreedy(1_000, BranchedAction((2,), (2, 1_000)), seed=0)
    action = np.full((1_000, 2), [0, 999])
    explored = greedy(action, np.linspace(0, 0.6, 1_000), None)
    changed = explored[:, 1] != 999  # a draw among 1,000 hardly ever gives the same again
    assert changed[:500].mean() == pytest.approx(0.15, abs=0.05) and changed[500:].mean() == pytest.approx(
        0.45, abs=0.07
    )
    both = changed & (explored[:, 0] != 0)  # epsilon for this one, half of epsilon for that one: E[epsilon ** 2] / 2
    assert both.mean() == pytest.approx(0.06, abs=0.03) and (action == [0, 999]).all()


# ------------------------------------------------------------------ runs

LEARNING = (
    "preset=generic", "env.import_modules=[tests.switches]", "algorithm.gamma=0.5", "algorithm.dueling=true",
    "algorithm.n_step=1", "algorithm.hidden_sizes=[64,64]", "algorithm.target_update_every_updates=100",
    "schedule=sequential", "schedule.frames_per_update=2", "budget_frames=12000", "learner.warmup_frames=500",
    "collector.num_workers=1", "collector.epsilon_decay_frames=10000", "collector.epsilon_end=0.05",
    "learner.learning_rate=1e-3", "learner.learning_rate_end=1e-5", "learner.batch_size=64", "logger.terminal=none",
    "replay.capacity_frames=12000", "evaluator.every_frames=0", "evaluator.final_episodes=20",
)  # fmt: skip


@pytest.mark.parametrize(("env", "dials"), [("Dials-v0", 18), pytest.param("Switches-v0", 40, marks=pytest.mark.slow)])
def test_dqn_turns_every_dial_right(env: str, dials: int, call: Callable[..., Any], tmp_path: Path) -> None:
    """729 million combinations (Dials), or 2 ** 40 (Switches); an episode of 8 steps pays 1 for each right dial."""
    done = call(*LEARNING, f"env.id={env}", f"run_dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval_return_mean"] == 8 * dials


EVERYTHING = {
    "dueling": True, "noisy": True, "prioritized": True, "n_step": 3, "target_tau": 0.01, "value_rescaling": True,
}  # fmt: skip
SHORT: dict[str, Any] = {
    "env": {"id": "Dials-v0", "backend": "gymnasium", "import_modules": ["tests.switches"]},
    "budget_frames": 800,
    "learner": {"warmup_frames": 100, "batch_size": 16},
}
TWO = {"id": "tests.switches", "backend": "pettingzoo"}


def short(config: Callable[..., Config], name: str, schedule: str, **changes: Any) -> Config:
    sections = {**SHORT, "schedule": {"name": schedule, "frames_per_round": 64}, **changes}
    return config(name, **sections)


def test_sync_equals_sequential_and_trace_equals_eager(small_config: Callable[..., Config]) -> None:
    options = {"algorithm": {"prioritized": True, "n_step": 3, "dueling": True}}
    sync, sequential = (trained(short(small_config, name, name, **options)) for name in ("sync", "sequential"))
    assert sync["learner"]["updates"] >= 150 and differences(sync, sequential) == []
    eager = {"learner": {**SHORT["learner"], "execution": "eager"}}
    assert differences(trained(short(small_config, "eager", "sequential", **options, **eager)), sequential) == []


def test_a_stopped_run_goes_on_bit_for_bit(small_config: Callable[..., Config]) -> None:
    whole = short(small_config, "whole", "sequential", budget_frames=2_000, algorithm=EVERYTHING)
    train(whole, ["test"])
    stopped = replace(whole, run_dir=str(Path(whole.run_dir or "").with_name("stopped")))
    stop_at(Path(stopped.run_dir or ""), 400)
    assert train(stopped, ["test"])["status"] == "stopped"
    assert train(replace(stopped, resume=stopped.run_dir), ["resume"])["status"] == "finished"
    one, other = newest(Path(whole.run_dir or "")), newest(Path(stopped.run_dir or ""))
    for part in ("learner", "limiter", "sampler"):
        assert differences(one[part], other[part]) == []


@pytest.mark.parametrize("learner", ["stacked", "process"])
def test_several_agents_choose_at_once(learner: str, small_config: Callable[..., Config]) -> None:
    pytest.importorskip("pettingzoo")
    config = short(small_config, "two", "async", env=TWO, agents={"learner": learner})
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and 0 < summary["eval_return_mean"] < 8 * 18


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_policy_is_exported_and_acts_as_the_environment_takes_it(
    suffix: str, small_config: Callable[..., Config]
) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    config = short(small_config, "run", "sequential", budget_frames=200)
    train(config, ["test"])
    policy = trainer.load_policy(Path(config.run_dir or ""))
    action = policy(np.array([0, 1, 2]))
    assert action.shape == (3, 2, 9) and all(Dials().action_space.contains(one) for one in action)
    path = policy.export(Path(config.run_dir or "") / f"p{suffix}")
    assert np.array_equal(RUNS[suffix](path)([np.array([0, 1, 2])]), action)


# ------------------------------------------------------------------ spaces and refusals


@pytest.mark.parametrize(
    ("space", "action", "words"),
    [
        (
            spaces.MultiDiscrete([3, 4], start=[0, 2]), BranchedAction((2,), (3, 4), (0, 2)),
            "lambda a: numpy.array(numpy.unravel_index(a, [3, 4])), gymnasium.spaces.Discrete(12)) makes one action of",
        ),
        (
            spaces.MultiBinary([1, 3]), BranchedAction((1, 3), (2, 2, 2)),
            "unravel_index(a, [2, 2, 2])), gymnasium.spaces.Discrete(8))",
        ),
        (spaces.MultiBinary(40), BranchedAction((40,), (2,) * 40), "write an action wrapper that numbers what can be"),
    ],
)  # fmt: skip
def test_a_space_of_several_choices_is_an_action_with_branches(space: Any, action: BranchedAction, words: str) -> None:
    found = action_of(space, "x")
    assert found == action and isinstance(found, BranchedAction) and words in found.advice
    drawn = found.random(np.random.default_rng(0), 100, None)
    assert all(space.contains(one) for one in found.for_env(drawn)) and len({str(one) for one in drawn}) > 5
    assert found.given(np.concatenate([drawn, found.none(2)])).tolist() == [True] * 100 + [False] * 2


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"name": "c51"}, "18 choices at once, and algorithm=c51 chooses one .*: set algorithm=dqn or apex"),
        ({"name": "munchausen"}, "18 choices at once"),
        ({"name": "sac"}, "18 choices at once, and algorithm=sac moves within a box"),
        ({"name": "dqn", "network": "torch.nn:Linear"}, "algorithm.network=torch.nn:Linear gives values of numbered"),
        ({"name": "apex", "prioritized": True}, "set replay.initial_priority=max"),
    ],
)
def test_what_does_not_go_with_branches_says_so(
    algorithm: dict[str, Any], words: str, small_config: Callable[..., Config]
) -> None:
    config = short(small_config, "run", "sequential", algorithm=algorithm, replay={"initial_priority": "collector"})
    if algorithm["name"] != "apex":
        config = replace(config, replay=replace(config.replay, initial_priority="max"))
    with pytest.raises(Exception, match=words):
        train(config, ["test"])
