"""The backends of environments: `BACKENDS` lists the values of the key `env.backend`, with what each can do.

Functions are given as import paths, `module:name`, so that a wrong argument is refused before slow imports. The key
also takes the import path of a user's own: of a `Backend`, or of a function `make` alone, which is taken to heed none
of the keys in `HEEDED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.envs.import_paths import NoPart, function_at, is_path, part_at

PREPROCESSING = ("none", "atari")
VECTORIZATION = ("auto", "sync", "native")  # sync: in this process; native: the environment's vector_entry_point
SCREEN_SIZE = 84  # default side of Atari's frames, in pixels


@dataclass(frozen=True)
class Backend:
    """One backend.

    Args:
        make: path of `make(env, num_envs, autoreset, render_mode) -> vector`, or for worlds of `make(env, num_envs,
            render_mode) -> world`. `env` has the attributes of EnvConfig.
        is_world: whether its environments have several agents.
        is_game: whether all of its environments are turn-based games, which one agent plays against opponents.
        make_game: path of `make_game(env, num_games, render_mode) -> game`; "" for a backend without games.
        scripted: path of `scripted(env) -> Player | None`, the scripted player of a game; "" if there is none.
        heeds: keys of the section `env` that this backend uses, of those in `HEEDED`.
        instead: for others of these keys, what to do where a user sets it, as the end of a sentence.
    """

    make: str
    is_world: bool = False
    is_game: bool = False
    make_game: str = ""
    scripted: str = ""
    heeds: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)


# Keys of the section `env` that some backends use.
HEEDED = (
    "preprocessing", "vectorization", "max_episode_steps", "mask_key", "clip_rewards", "wrappers", "instance_key",
)  # fmt: skip

# The first one is the default.
BACKENDS: dict[str, Backend] = {
    "gymnasium": Backend(
        "trainer.envs.gymnasium:make",
        heeds=HEEDED,
    ),
    "envpool": Backend(
        "trainer.envs.envpool:make",
        heeds=("preprocessing", "max_episode_steps", "mask_key", "clip_rewards"),
        instead={
            "wrappers": "EnvPool steps all environments at once in C++: use env.backend=gymnasium, which wraps each",
            "instance_key": "EnvPool makes all environments at once: use env.backend=gymnasium, which makes each",
        },
    ),
    "counting": Backend("trainer.envs.counting:make", heeds=("clip_rewards",)),
    "counting_agents": Backend("trainer.envs.counting_agents:make_world", is_world=True, heeds=("clip_rewards",)),
    "grid": Backend("trainer.envs.grids:make", is_world=True, heeds=("wrappers", "instance_key")),
    "pettingzoo": Backend(
        "trainer.envs.pettingzoo:make",
        is_world=True,
        make_game="trainer.envs.games.turn_based:make_game",
        heeds=("mask_key", "clip_rewards", "wrappers", "instance_key"),
    ),
    "game": Backend(
        "trainer.envs.selfplay:make",
        is_world=True,
        is_game=True,
        make_game="trainer.envs.selfplay:make_listed",
        scripted="trainer.envs.selfplay:scripted_listed",
        heeds=("clip_rewards", "wrappers", "instance_key"),
    ),
    "openspiel": Backend(
        "trainer.envs.selfplay:make",
        is_world=True,
        is_game=True,
        make_game="trainer.envs.games.openspiel:make_game",
        scripted="trainer.envs.games.openspiel:scripted",
        heeds=("clip_rewards", "wrappers"),
        instead={"instance_key": "a game of OpenSpiel takes no number: leave it out"},
    ),
}


def known_backend(name: str) -> Backend:
    """What is known of a backend without importing it: of a user's own, that it may be a function `make`."""
    advice = f'name a trainer.envs.backends.Backend("{name}", heeds=("KEY",)) in its place if your function uses it'
    return BACKENDS.get(name, Backend(name, instead={key: advice.replace("KEY", key) for key in HEEDED}))


def backend_of(name: str) -> Backend:
    """A backend, which is imported if it is a user's own.

    Raises:
        NoPart: the import path leads neither to a `Backend` nor to a function like `make`.
    """
    if not is_path(name) or name in BACKENDS:
        return BACKENDS[name]
    found = part_at(name)
    if isinstance(found, Backend):
        return found
    if not callable(found):
        raise NoPart(f"{name} is {type(found).__name__}, and must be a trainer.envs.backends.Backend or a function")
    function_at(name, ("env", "num_envs"), ("autoreset", "render_mode"))
    return known_backend(name)
