"""What an environment may do that Gymnasium does not foresee: it trains, or ends in one sentence with a remedy."""

from __future__ import annotations

import re
import signal
import sys
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import hurting_worlds
import numpy as np
import pytest
import torch

from trainer import envs
from trainer.config.sections import EnvConfig as config
from trainer.envs.spaces import action_of

MODULES = "env.import_modules=[hurting_worlds]"
SHIMMY = "an environment of old gym is played through shimmy"


def played(what: str, value: Any, steps: int = 12) -> Any:
    """Two sub-environments of `hurting_worlds.Gives` after some steps."""
    vector = envs.make(config("Hurting/Gives-v0", kwargs={"what": what, "value": value}), 2)
    vector.reset(11)
    for _ in range(steps):
        vector.step(np.ones(2, np.int64))
    vector.close()
    return vector


def refused(what: str, value: Any) -> str:
    with pytest.raises(envs.EnvError) as caught:
        played(what, value)
    text = str(caught.value)
    assert text.startswith("Hurting/Gives-v0: ") and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("reset", lambda seen: seen, "its reset failed: it gave an array of shape (2,), and must give (observation, "
         f"info) with info a dict; where reset gives the observation alone, {SHIMMY}"),
        ("reset", lambda seen: (seen, seen), "it gave a tuple of 2"),
        ("reset", lambda seen: (seen, {}, {}), "it gave a tuple of 3"),
        ("reset", lambda seen: None, "it gave None"),
        ("reset", SystemExit("no licence"), "its reset failed: SystemExit: no licence"),
        ("reset", ValueError("Xlib: cannot open display :0"), "put `xvfb-run -a` before the command"),
        ("constructor", SystemExit(3), "its constructor failed, given env.kwargs="),
        ("constructor", hurting_worlds.Panic("called `unwrap()` on a `None` value"), "Panic: called `unwrap()`"),
        ("step", lambda seen: (seen, 0.0, False, {}), f"it gave a tuple of 4, and must give the five values "
         f"(observation, reward, terminated, truncated, info); {SHIMMY}"),
        ("step", lambda seen: None, "it gave None, and must give the five values"),
        ("step", hurting_worlds.Panic("index out of bounds"), "failed in step with action 1, in step 1 of its episode, "
         "step 1 of all: Panic: index out of bounds"),
        ("step", SystemExit("the end"), "SystemExit: the end"),
        ("step", GeneratorExit(), "step 1 of all: GeneratorExit"),
        ("reward", np.array([1.0]), "its reward is an array of shape (1,), and must be one number: wrap it by "
         "gymnasium.wrappers.TransformReward(env, lambda reward: float(reward[0]))"),
        ("reward", np.array([1.0, 2.0]), "its reward is an array of shape (2,), and must be one number: weigh its "
         "parts by mo_gymnasium.wrappers.LinearReward"),
        ("reward", [1.0, 2.0], "its reward is a list of 2, and must be one number"),
        ("reward", None, "its reward is nan, which is no finite number"),
        ("reward", {"a": 1}, "its reward is a dict of 1, and must be one number"),
        ("reward", "much", "its reward is 'much' (str), and must be one number"),
        ("reward", "3", "its reward is '3' (str), and must be one number"),
        ("reward", 1e39, "its reward is inf, which is no finite number of float32"),
        ("reward", float("nan"), "its reward is nan, which is no finite number"),
        ("reward", 10**400, "OverflowError: int too large to convert to float"),
        ("reward", 1 + 2j, "its reward is a complex, and must be one number"),
        ("reward", torch.ones((), requires_grad=True), "its reward is a Tensor, and must be one number: return rew"),
        ("reward", Decimal("sNaN"), "its reward is a Decimal, and must be one number"),
        ("reward", np.timedelta64(3, "s"), "(timedelta64), and must be one number"),
        ("step", ValueError("a\n\x1b[2J\x00"), "ValueError: a ?[2J?"),
        ("terminated", None, "its terminated is None, and must be True or False"),
        ("terminated", np.array([True, False]), "its terminated is an array of shape (2,)"),
        ("truncated", "TimeLimit", "its truncated is 'TimeLimit' (str), and must be True or False"),
        ("info", [1], "its info is a list of 1, and must be a dict"),
        ("action_space", None, "its action_space is None; set self.action_space in its constructor"),
        ("observation_space", None, "its observation_space is None"),
        ("action_space", gym.spaces.Discrete(10**7), "its action space has 10000000 actions"),
        ("observation_space", gym.spaces.Discrete(10**7), "has 10000000 categories"),
        ("observation_space", gym.spaces.MultiDiscrete([10**6] * 9), "has 9000000 categories"),
        ("observation_space", gym.spaces.Sequence(gym.spaces.Discrete(2)), "is not supported"),
        ("action_space", gym.spaces.Box(-1, np.inf, (2,)), "gymnasium.wrappers.TransformAction(env, lambda a: a, "
         "gymnasium.spaces.Box(-1, 1, (2,))) sets bounds"),
        ("action_space", gym.spaces.MultiDiscrete([10**6] * 9), "has 9 choices among up to 1000000 numbers"),
        ("spaces", None, "its observation space is Box(-1.0, 1.0, (2,), float32) before reset and Box(-1.0, 1.0, (3,)"),
    ],
)  # fmt: skip
def test_what_gymnasium_does_not_foresee_is_one_sentence_with_a_remedy(what: str, value: Any, words: str) -> None:
    assert words in refused(what, value)


@pytest.mark.parametrize(
    ("what", "value", "pays"),
    [
        ("reset", lambda seen: (seen, None), 1),
        ("reset", lambda seen: [seen, {}], 1),
        ("info", None, 1),
        ("reward", np.float64(2), 2),
        ("reward", np.array(2, np.int64), 2),
        ("reward", True, 1),
        ("reward", Fraction(3, 2), 1.5),
        ("reward", torch.tensor(1.5), 1.5),
        ("terminated", 0, 1),
        ("terminated", np.bool_(False), 1),
        ("truncated", np.array(False), 1),
        ("action_space", gym.spaces.Discrete(1), 1),
        ("observation_space", gym.spaces.Box(-1, 1, (2,), np.float64), 1),
    ],
)
def test_what_means_the_same_trains(what: str, value: Any, pays: float) -> None:
    vector = played(what, value, steps=3)
    assert vector.raw_reward.tolist() == [pays, pays]


def test_what_the_actions_sentence_advises_works() -> None:
    inner = hurting_worlds.Gives("action_space", gym.spaces.MultiDiscrete([3, 4]))
    words = action_of(inner.action_space, "x").advice  # type: ignore[union-attr]
    (advice,) = re.findall(r"gymnasium\.wrappers\.TransformAction\(.*\)\)", words)
    wrapped = eval(advice, {"gymnasium": gym, "numpy": np, "env": inner})
    assert wrapped.action_space == gym.spaces.Discrete(12)
    assert [wrapped.func(a).tolist() for a in (0, 5, 11)] == [[0, 0], [1, 1], [2, 3]]


def test_old_signatures_and_the_registry_of_old_gym_name_shimmy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(envs.EnvError, match="its reset must take seed=None and options=None; .*shimmy"):
        envs.make(config("Hurting/OldSignature-v0"), 2)
    old = SimpleNamespace(envs=SimpleNamespace(registry={"Old-v0": None}))
    monkeypatch.setitem(sys.modules, "gym", old)
    with pytest.raises(envs.EnvError, match="it is registered with old gym, not with Gymnasium; .*shimmy"):
        envs.make(config("Old-v0"), 2)


def test_an_emulator_of_which_a_process_holds_one_trains_alone_and_says_so_otherwise() -> None:
    with pytest.raises(envs.EnvError, match=r"sub-environment 1 .*could not start; .*collector.envs_per_worker=1"):
        envs.make(config("Hurting/Single-v0"), 2)
    assert hurting_worlds.Single.held == 0
    vector = envs.make(config("Hurting/Single-v0"), 1)
    vector.reset(0)
    assert hurting_worlds.Single.held == 1
    vector.close()
    assert hurting_worlds.Single.held == 0


def test_it_is_looked_at_with_a_seed() -> None:
    assert envs.describe(config("Hurting/Seeded-v0")).num_actions == 2


def test_a_close_that_raises_closes_the_others_and_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (RuntimeError("socket is gone"), SystemExit("bye")):
        played("close", error)
        words = f"{type(error).__name__}: {error}"
        assert capsys.readouterr().err == f"warning: Hurting/Gives-v0: its close failed: {words}\n"


def test_ctrl_c_is_not_the_environments_doing_but_its_own_interrupt_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        played("step", KeyboardInterrupt())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in every child of a run
    try:
        assert "step 1 of all: KeyboardInterrupt" in refused("step", KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("seed", [0, 1])  # Python's generator, and NumPy's old one
def test_a_generator_of_old_gym_trains_and_cannot_be_gone_on_from(seed: int) -> None:
    vector = envs.make(config("Hurting/OldGenerator-v0"), 1)
    vector.reset(seed)
    assert vector.state() is not None
    for _ in range(7):
        vector.step(np.ones(1, np.int64))
    assert vector.state() is None


def test_a_run_of_such_an_environment_says_that_it_begins_new_episodes_when_it_is_resumed(run) -> None:
    given = ["env.id=Hurting/OldGenerator-v0", MODULES, "schedule=sync", "schedule.frames_per_round=40"]
    ended = run(*given)
    assert ended.code == 0 and ended.summary["frames"] >= 600, ended.said
    again = run(f"resume={ended.run_dir}", "budget_frames=800", quick=False)
    assert again.code == 0, again.said
    assert "the workers begin new episodes" in again.said and ended.summary["frames"] >= 800


def test_an_environment_that_ends_its_process_is_named_with_its_words(run) -> None:
    ended = run("env.id=Hurting/Exits-v0", MODULES, "faults.max_failures=0")
    assert ended.code == 1
    assert re.search(
        r"sub-environment 0 \(seed \d+\) failed in step with action \d, in step 3 of its episode, step 3 of all: "
        r"SystemExit: the simulator lost its licence", ended.summary["reason"],
    ), ended.said  # fmt: skip


def test_a_module_that_ends_the_process_when_it_is_imported_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit('needs a licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = r"env.import_modules names 'leaves_at_once', which cannot be imported \(SystemExit: needs a licence\)"
    for backend, env_id in (("gymnasium", "CartPole-v1"), ("grid", "tag"), ("counting", "Counting"), ("game", "ludo")):
        with pytest.raises(envs.EnvError, match=words):
            envs.describe_world(config(env_id, backend=backend, import_modules=["leaves_at_once"]))


def test_a_module_may_add_a_grid_world(tmp_path, monkeypatch) -> None:
    (tmp_path / "adds_a_world.py").write_text(
        "from trainer.envs.worlds import WORLDS, Tag\nclass Wide(Tag):\n    pass\nWORLDS['wide'] = Wide\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = config("wide", backend="grid", import_modules=["adds_a_world"])
    assert len(envs.describe_world(env)) == len(envs.describe_world(config("tag", backend="grid")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "FrozenLake-v1", "frame_stack": 4}, "env.frame_stack=4 stacks Boxes alone"),
        ({"id": "tag", "backend": "grid", "mask_key": "mine"}, "does not heed env.mask_key=mine"),
        (
            {"id": "C", "backend": "counting", "kwargs": {"min_length": "x"}},
            "env.kwargs.min_length=x is of another",
        ),
        ({"id": "cleanup", "backend": "grid", "kwargs": {"radius": 2.5}}, "it could not be made with env.kwargs="),
        ({"id": "C", "backend": "counting_agents", "kwargs": {"num_agents": 0}}, "env.kwargs.num_agents=0 must be"),
        ({"id": "C", "backend": "counting", "kwargs": {"with_mask": 3}}, "env.kwargs.with_mask=3 is of another kind"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(envs.EnvError, match=re.escape(words)):
        envs.describe_world(config(changes.pop("id"), **changes))


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("constructor", SystemExit("no licence"), "it could not be made with env.kwargs="),
        ("observation_space", None, "is not supported"),
        ("action_space", gym.spaces.Box(-1, np.inf, (1,)), "Discrete; wrap it in a module of your own, whose"),
        ("action_space", KeyError("a"), "it could not be made with env.kwargs="),
        ("reset", lambda right: right[0], "it gave a dict of 2, and must give (observation, info)"),
        ("reset", (None, {}), "its reset must give a dict of observations, one for each agent"),
        ("step", lambda right: right[:4], "its step must give five dicts (observations, rewards, terminations, trunc"),
        ("step", SystemExit("gone"), "sub-environment 0 (seed 11) failed in step 1: SystemExit: gone"),
        ("step", hurting_worlds.Panic("unwrap"), "sub-environment 0 (seed 11) failed in step 1: Panic: unwrap"),
        ("rewards", {"a": float("nan"), "b": 0.0}, "the reward of a is nan, which is no finite number"),
        ("rewards", {"a": 1.0, "b": np.zeros(2)}, "of b, its reward is an array of shape (2,), and must be one"),
        ("observations", {"a": np.zeros(2), "b": np.array([0, np.inf])}, "of b: observation[1] is inf, which is no"),
        ("observations", {"a": np.zeros(2), "b": np.zeros(3)}, "of b: observation has shape (3,) where its space"),
        ("render", ValueError("cannot open display"), "ValueError: cannot open display; where there is no display"),
    ],
)  # fmt: skip
def test_the_same_of_a_world_of_several_agents(what: str, value: Any, words: str) -> None:
    env = config("hurting_parallel", backend="pettingzoo", kwargs={"what": what, "value": value})
    with pytest.raises(envs.EnvError) as caught:
        world = envs.make_world(env, 2, render_mode="rgb_array")
        world.reset(11)
        world.step([np.zeros(2, np.int64)] * 2)
        world.render()
    assert (
        words in str(caught.value)
        and str(caught.value).startswith("hurting_parallel")
        and "\n" not in str(caught.value)
    )
