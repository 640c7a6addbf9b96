"""Read and write Minari datasets (https://minari.farama.org).

An observation is stored as the trainer stores it: one frame, in the leaves of `trainer.envs.spaces`. So a dataset of a
run has the space that its environment shows after preprocessing and before frame stacking.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line
from trainer.datasets.rows import Episode
from trainer.envs import EnvError, EnvSpec
from trainer.envs.actions import Action, BoxAction, BranchedAction, DiscreteAction
from trainer.envs.spaces import Field, action_of, fields_of
from trainer.envs.spec import Leaf
from trainer.envs.writing import batch_writer, fault_of_batch

MASK = "action_mask"  # in the infos of a step, or at the top of a Dict observation


def read_dataset(name: str, spec: EnvSpec, most_rows: int) -> tuple[list[Episode], bool]:
    """The episodes of a dataset, in its order.

    Args:
        name: a dataset's id, or its folder.
        spec: of the environment that goes on from it.
        most_rows: after so many rows (steps and final observations) no further episode is read.

    Returns:
        The episodes, and whether they are all of the dataset.

    Raises:
        ConfigError: there is no such dataset, its spaces are others, or a value lies outside them.
    """
    dataset = _open(name)
    fields = _same_spaces(name, dataset, spec)
    found: list[Episode] = []
    rows = 0
    for episode in dataset.iterate_episodes():
        found.append(_episode(name, episode, fields, spec))
        rows += len(found[-1].actions) + 1
        if rows >= most_rows:
            break
    if not found:
        raise ConfigError(f"the dataset {name} has no episodes: name another one")
    return found, len(found) == dataset.total_episodes


def write_dataset(name: str, episodes: Iterator[Episode], spec: EnvSpec, **about: Any) -> tuple[int, int]:
    """Write episodes as a new dataset.

    Args:
        name: id of the dataset, as lander/replay-v0.
        episodes: at least one.
        spec: of the environment.
        about: further arguments of `minari.create_dataset_from_buffers`.

    Returns:
        Number of episodes and of steps.

    Raises:
        ConfigError: there is such a dataset already, the id is not valid, or there are no episodes.
    """
    minari = _minari()
    space = _observation_space(spec)
    buffers, steps = [], 0
    for number, episode in enumerate(episodes):
        steps += len(episode.actions)
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                id=number,
                observations=_observations(episode, spec),
                actions=spec.action.for_env(episode.actions),
                rewards=episode.rewards.astype(np.float64).tolist(),
                terminations=episode.terminated.tolist(),
                truncations=episode.truncated.tolist(),
                infos={MASK: episode.observations[MASK]} if spec.action.has_mask else {},
            )
        )
    if not buffers:
        raise ConfigError("the replay holds no whole step yet: train longer, with checkpoint.replay=true")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an author and a link, which a dataset for one's own use need not have
            minari.create_dataset_from_buffers(
                name, buffers, observation_space=space, action_space=_action_space(spec), jpeg_encoding=False, **about
            )
    except (ValueError, OSError, AssertionError, ImportError) as error:
        raise ConfigError(f"the dataset {name} cannot be written: {first_line(error)}") from error
    return len(buffers), steps


def _minari() -> ModuleType:
    try:
        import minari
        import minari.data_collector
    except ImportError as error:
        raise ConfigError(f"datasets need Minari ({error}): pip install 'minari[hdf5]'") from error
    return minari


def _open(name: str) -> Any:
    minari = _minari()
    folder = Path(name)
    try:
        if folder.is_dir():
            return minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
        return minari.load_dataset(name)
    except (ValueError, OSError, LookupError, ImportError) as error:
        raise ConfigError(
            f"replay.start_from={name}: there is no such dataset here ({first_line(error)}); `minari list local` names "
            f"those that are, and `minari download {name}` gets one"
        ) from error


def _same_spaces(name: str, dataset: Any, spec: EnvSpec) -> tuple[Field, ...]:
    """The dataset's leaves.

    Raises:
        ConfigError: they are not those of the environment.
    """
    try:
        fields = fields_of(dataset.observation_space, 1, name)
        action = action_of(dataset.action_space, name)
    except EnvError as error:
        raise ConfigError(f"replay.start_from={name}: {error}") from error
    theirs = {field.leaf.name: (field.leaf.shape, field.leaf.dtype) for field in fields}
    ours = {leaf.name: (leaf.shape, leaf.dtype) for leaf in spec.leaves}
    if theirs != ours:
        raise ConfigError(
            f"replay.start_from={name} has observations {_words(theirs)}, and {spec.id} has {_words(ours)} (of one "
            "frame): name a dataset of this environment with the same preprocessing"
        )
    if _without_mask(action) != _without_mask(spec.action):
        raise ConfigError(
            f"replay.start_from={name} has the actions {dataset.action_space}, and those of {spec.id} are others "
            f"({spec.action}): name a dataset of this environment"
        )
    return fields


def _episode(name: str, episode: Any, fields: Sequence[Field], spec: EnvSpec) -> Episode:
    rows = len(episode.rewards) + 1
    seen = {}
    for field in fields:
        seen[field.leaf.name] = np.zeros((rows, *field.leaf.shape), field.leaf.dtype)
        try:
            batch_writer(field, seen[field.leaf.name])(episode.observations)
        except Exception as error:
            fault = fault_of_batch([field], episode.observations, rows)
            why = fault[1] if fault else first_line(error)
            raise ConfigError(f"replay.start_from={name}, episode {episode.id}: {why}") from error
    if spec.action.has_mask:
        seen[MASK] = _masks(name, episode, rows)
    actions = np.asarray(episode.actions)
    return Episode(
        seen, (actions - spec.action.for_env(np.zeros(spec.action.shape, spec.action.dtype))).astype(spec.action.dtype),
        np.asarray(episode.rewards, np.float32), np.asarray(episode.terminations, bool),
        np.asarray(episode.truncations, bool),
    )  # fmt: skip


def _masks(name: str, episode: Any, rows: int) -> np.ndarray:
    for where in (episode.infos, episode.observations):
        if isinstance(where, dict) and len(where.get(MASK, ())) == rows:
            return np.asarray(where[MASK], bool)
    raise ConfigError(
        f"replay.start_from={name} has no action masks, and this environment has: they are sought as {MASK} in the "
        "infos or in the observation of each step"
    )


def _observations(episode: Episode, spec: EnvSpec) -> Any:
    parts = {leaf.name: episode.observations[leaf.name] for leaf in spec.leaves}
    for leaf in spec.leaves:
        if leaf.kind == "discrete" and leaf.shape == (1,):
            parts[leaf.name] = parts[leaf.name][:, 0]
    return parts["observation"] if list(parts) == ["observation"] else {_short(name): parts[name] for name in parts}


def _observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    parts = {leaf.name: _space(leaf) for leaf in spec.leaves}
    if list(parts) == ["observation"]:
        return parts["observation"]
    return spaces.Dict({_short(name): space for name, space in parts.items()})


def _space(leaf: Leaf) -> spaces.Space[Any]:
    """A space that `trainer.envs.spaces` reads as a leaf of the same name, shape and dtype."""
    if leaf.kind == "discrete":
        return spaces.Discrete(leaf.nvec[0]) if leaf.shape == (1,) else _categories(leaf)
    if leaf.dtype == "bool":
        return spaces.MultiBinary(leaf.shape if len(leaf.shape) > 1 else leaf.shape[0])
    if leaf.dtype == "uint8":
        return spaces.Box(0, 255, leaf.shape, np.uint8)
    if len(leaf.low) == np.prod(leaf.shape):
        low, high = (np.array(bound, np.float32).reshape(leaf.shape) for bound in (leaf.low, leaf.high))
        return spaces.Box(low, high, dtype=np.float32)
    low_, high_ = (leaf.low[0], leaf.high[0]) if leaf.low else (-np.inf, np.inf)
    return spaces.Box(low_, high_, leaf.shape, np.float32)


def _categories(leaf: Leaf) -> spaces.Space[Any]:
    return spaces.MultiDiscrete(np.array(leaf.nvec).reshape(leaf.shape))


def _action_space(spec: EnvSpec) -> spaces.Space[Any]:
    action = spec.action
    if isinstance(action, BoxAction):
        low, high = (np.array(bound, np.float32).reshape(action.shape) for bound in (action.low, action.high))
        return spaces.Box(low, high, dtype=np.float32)
    if isinstance(action, BranchedAction):
        return spaces.MultiDiscrete(np.reshape(action.nvec, action.shape), start=action.offset)
    return spaces.Discrete(action.n, start=action.start)


def _without_mask(action: Action) -> Action:
    """The action as its space declares it."""
    return replace(action, has_mask=False) if isinstance(action, DiscreteAction) else action


def _short(name: str) -> str:
    return name.removeprefix("observation.")


def _words(leaves: dict[str, tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in leaves.items())
