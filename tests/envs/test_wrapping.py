"""What users put into the environment by import path: its maker, wrappers, numbers of instances, backends, players."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from trainer import envs
from trainer.config.compose import load
from trainer.config.instances import env_of_collector, env_of_others
from trainer.envs.selfplay import scripted

MODULE = '''
import gymnasium as gym
import numpy as np

from trainer.envs.backends import Backend
from trainer.envs.games import TicTacToe
from trainer.envs.gymnasium import make as make_gymnasium
from trainer.envs.worlds import Tag

made = []
NUMBER = 5
tag = Tag

class Ports(gym.Env):
    """Shows the port that it was given."""
    def __init__(self, port, step=1, render_mode=None):
        made.append(port)
        self.port, self.step_size, self.render_mode = port, step, render_mode
        self.observation_space = gym.spaces.Box(0, 10_000, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.full(1, self.port, np.float32), {}
    def step(self, action):
        return np.full(1, self.port, np.float32), float(self.step_size), False, False, {}

def breaks(env):
    raise OSError("no display")

def gives_nothing(env):
    return None

def times(env, factor):
    return gym.wrappers.TransformReward(env, lambda reward: reward * factor)

def plus(env, term):
    return gym.wrappers.TransformReward(env, lambda reward: reward + term)

def make(env, num_envs, autoreset=True, render_mode=None):
    return make_gymnasium(env, num_envs, autoreset, render_mode)

def half(env, num_envs, autoreset=True, render_mode=None):
    return object()

def wrong(env):
    return None

BACKEND = Backend("my_envs:make", heeds=("wrappers",))

class Twice:
    """Doubles the rewards of a batch of games or worlds; all else is theirs."""
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    @property
    def rewards(self):
        return 2 * self.inner.rewards
    def step(self, *args, **kwargs):
        found = self.inner.step(*args, **kwargs)
        return found if found is None else (found[0], 2 * found[1])

def game(num_games, server=None):
    made.append(server)
    return TicTacToe(num_games)

def numbered_tag(num_worlds, server):
    made.append(server)
    return Tag(num_worlds)

def last(game, generator, rows=None):
    mask = game.action_mask if rows is None else game.action_mask[rows]
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a user's parts."""
    (tmp_path / "my_envs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_envs", None)
    import my_envs

    return my_envs


def test_an_environment_is_made_by_its_import_path(mine: Any, config: Callable[..., SimpleNamespace]) -> None:
    env = config("my_envs:Ports", kwargs={"port": 7, "step": 3}, max_episode_steps=2)
    vector = envs.make(env, 2)
    assert (vector.spec.id, vector.spec.num_actions, vector.spec.max_episode_steps) == ("my_envs:Ports", 2, 2)
    assert vector.reset(0)["observation"].tolist() == [[7.0], [7.0]]
    steps = [vector.step(np.zeros(2, np.int64)) for _ in range(2)]
    assert steps[1][3].all() and vector.raw_reward.tolist() == [3.0, 3.0]
    vector.close()
    cartpole = envs.describe(config("gymnasium.envs.classic_control:CartPoleEnv"))
    assert (cartpole.leaves[0].shape, cartpole.max_episode_steps) == ((4,), None)


def test_wrappers_are_put_around_in_their_order(mine: Any, config: Callable[..., SimpleNamespace]) -> None:
    wrappers: list[Any] = [{"wrapper": "my_envs:times", "factor": 10}, {"wrapper": "my_envs:plus", "term": 4}]
    vector = envs.make(config("my_envs:Ports", kwargs={"port": 7}, wrappers=wrappers), 1)
    vector.reset(0)
    vector.step(np.zeros(1, np.int64))
    assert vector.raw_reward.tolist() == [14.0]
    flat = config("CartPole-v1", wrappers=["gymnasium.wrappers:FlattenObservation"])
    assert type(envs.make(flat, 1).envs[0]) is gym.wrappers.FlattenObservation  # not the native vector
    assert envs.describe(
        config("CartPole-v1", wrappers=[{"wrapper": "gymnasium.wrappers:TimeAwareObservation"}])
    ).leaves


def test_every_instance_of_a_run_has_its_number(mine: Any, config: Callable[..., SimpleNamespace]) -> None:
    env = config("my_envs:Ports", instance_key="port", first_instance=5_000)
    vector = envs.make(env, 3)
    assert vector.reset(0)["observation"].ravel().tolist() == [5_000, 5_001, 5_002]
    assert mine.made == [5_000, 5_001, 5_002]
    words = [
        "env.instance_key=port",
        "env.first_instance=5000",
        "collector.num_workers=3",
        "collector.envs_per_worker=4",
    ]
    run = load([*words, "replay.capacity_frames=1000"], cores=8).config
    firsts = [env_of_collector(run, 4 * worker).first_instance for worker in range(3)]
    assert firsts == [5_000, 5_004, 5_008] and env_of_others(run).first_instance == 5_012
    local = load([*words, "schedule=shared_gradient", "schedule.num_agents=2"], cores=8).config
    assert env_of_others(local).first_instance == 5_008


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": "my_envs:Ports"}, r"env.id=my_envs:Ports is called with \(\), and takes \(port, step=1.*: missing"),
        ({"id": "my_envs:NUMBER"}, "env.id=my_envs:NUMBER is int, and must be a function or a class"),
        ({"id": "nowhere:Env"}, "env.id=nowhere:Env: there is no module nowhere; start in the folder"),
        ({"wrappers": ["my_envs:breaks"]}, "CartPole-v1: env.wrappers=my_envs:breaks failed: OSError: no disp"),
        ({"wrappers": ["my_envs:gives_nothing"]}, "gives_nothing gave NoneType, which has no step, reset; a wrapper"),
        ({"wrappers": [{"wrapper": "my_envs:times", "by": 2}]}, r"called with \(env, by=...\), and takes \(env, fac"),
        ({"wrappers": ["my_envs:times"], "backend": "counting"}, "env.backend=counting does not heed env.wrappers"),
        ({"instance_key": "n", "vectorization": "native"}, "native knows neither pictures, .* numbers of instances"),
        ({"backend": "my_envs:none"}, "env.backend=my_envs:none: my_envs .* not none"),
        ({"backend": "my_envs:NUMBER"}, "env.backend=my_envs:NUMBER is int, and must be a trainer.envs.backends"),
        ({"backend": "my_envs:wrong"}, r"my_envs:wrong is called with \(env, num_envs, autoreset"),
        ({"backend": "my_envs:half"}, "env.backend=my_envs:half made object, which has no spec, num_envs, reset"),
        ({"backend": "my_envs:BACKEND", "clip_rewards": True}, "env.backend=my_envs:BACKEND does not heed env.clip"),
        ({"backend": "my_envs:make", "wrappers": ["my_envs:breaks"]}, 'a trainer.envs.backends.Backend."my_envs:m'),
        ({"backend": "envpool", "wrappers": ["my_envs:breaks"]}, "in C..: use env.backend=gymnasium, which wraps each"),
        ({"backend": "envpool", "instance_key": "port"}, "at once: use env.backend=gymnasium, which makes each"),
        ({"backend": "openspiel", "instance_key": "port"}, "a game of OpenSpiel takes no number: leave it out"),
        ({"backend": "game", "id": "ludo", "instance_key": "port"}, "do not fit: .*unexpected keyword argument 'port'"),
        ({"backend": "grid", "id": "tag", "instance_key": "port"}, "do not fit: .* unexpected keyword argument 'port'"),
        ({"backend": "game", "id": "ludo", "wrappers": ["my_envs:gives_nothing"]}, "gave NoneType, .* batch of games"),
        ({"backend": "grid", "id": "tag", "wrappers": ["my_envs:breaks"]}, "my_envs:breaks failed: OSError: no displ"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_sentence(
    mine: Any, config: Callable[..., SimpleNamespace], changes: dict[str, Any], sentence: str
) -> None:
    changes = dict(changes)
    with pytest.raises(envs.EnvError, match=sentence) as refused:
        envs.describe_world(config(changes.pop("id", "CartPole-v1"), **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("backend", ["my_envs:BACKEND", "my_envs:make"])
def test_a_backend_of_its_own_makes_the_vector(mine: Any, config: Callable[..., SimpleNamespace], backend: str) -> None:
    ((name, spec),) = envs.describe_world(config("CartPole-v1", backend=backend))
    assert (name, spec.num_actions) == ("agent_0", 2)


def test_games_worlds_and_players_of_its_own(mine: Any, config: Callable[..., SimpleNamespace]) -> None:
    env = config("my_envs:game", backend="game")
    world = envs.make_world(env, 2)
    assert world.specs[0].against_opponents and world.specs[0].num_actions == 9
    player = scripted(env, "my_envs:last")
    assert player(world.game, np.random.default_rng(0)).tolist() == [8, 8]
    with pytest.raises(envs.EnvError, match="name one of yours: opponents.scripted_player=package.module:function"):
        scripted(env)
    with pytest.raises(envs.EnvError, match=r"the player my_envs:wrong is called with \(game, generator, rows\)"):
        scripted(env, "my_envs:wrong")
    tag = envs.describe_world(config("my_envs:tag", backend="grid"))
    assert [spec for _, spec in tag] == [
        spec.__class__(**{**vars(spec), "id": "my_envs:tag"})
        for _, spec in envs.describe_world(config("tag", backend="grid"))
    ]


@pytest.mark.parametrize(
    ("backend", "env_id"), [("game", "tictactoe"), ("game", "my_envs:game"), ("openspiel", "tic_tac_toe")]
)
def test_games_are_wrapped_as_a_batch(
    mine: Any, config: Callable[..., SimpleNamespace], backend: str, env_id: str
) -> None:
    """A game ends with the rewards 1 and -1, or 0 and 0."""
    if backend == "openspiel":
        pytest.importorskip("pyspiel")
    world = envs.make_world(config(env_id, backend=backend, wrappers=["my_envs:Twice"]), 8)
    world.reset(0)
    seen = {0.0}
    for _ in range(30):
        legal = world.game.action_mask.argmax(1)
        world.step([legal])
        seen |= set(world.raw_rewards[0].tolist())
    assert seen <= {0.0, 2.0, -2.0} and 2.0 in seen


def test_worlds_are_wrapped_as_a_batch_and_have_no_state_then(mine: Any, config: Callable[..., SimpleNamespace]):
    plain, twice = (
        envs.make_world(config("tag", backend="grid", wrappers=wrappers), 4) for wrappers in ([], ["my_envs:Twice"])
    )
    actions = [np.full(4, 1) for _ in plain.agents]
    for world in (plain, twice):
        world.reset(3)
        for _ in range(20):
            world.step(actions)
    assert np.array_equal(2 * np.array(plain.raw_rewards), np.array(twice.raw_rewards))
    assert plain.state() is not None and twice.state() is None


def test_a_batch_has_the_number_of_its_first_environment(mine: Any, config: Callable[..., SimpleNamespace]):
    for backend, env_id in (("game", "my_envs:game"), ("grid", "my_envs:numbered_tag")):
        envs.make_world(config(env_id, backend=backend, instance_key="server", first_instance=40), 3).close()
    assert mine.made == [40, 40]
