"""The policy file: the weights of a policy and all that is needed to act by them, in one file that is safe to share.

It is a safetensors file, so it holds tensors and text, and reading it runs no code. Its metadata has two entries:

    trainer_policy  a JSON object, see `header`
    crc32           of the whole file with these eight digits set to 0, so that any damage is noticed

The tensors are those of the networks that act, float32, by their names in the network; with several agents
`<agent>/<name>`. What a run needs to go on is in its checkpoints (`trainer.run_folder.checkpoint`).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line, from_dict, to_dict
from trainer.config.sections import Config, LoggerConfig
from trainer.envs.actions import Action, BoxAction, BranchedAction, DiscreteAction
from trainer.envs.spec import EnvSpec, Leaf
from trainer.reading import ReadError, read_text
from trainer.run_folder import manifest

FORMAT = 1
SUFFIX = ".safetensors"
KEY, CHECKSUM = "trainer_policy", "crc32"
UNSET = f'"{CHECKSUM}":"{0:08x}"'.encode()  # as it stands in the file before it is known
SET = re.compile(f'"{CHECKSUM}":"([0-9a-f]{{8}})"'.encode())
ACTIONS: dict[str, type[Action]] = {"discrete": DiscreteAction, "box": BoxAction, "branched": BranchedAction}

Shapes = list[tuple[str, list[int]]]  # name and shape of each tensor, in the order of the flat weights


@dataclass(frozen=True)
class Agent:
    """An agent of a policy file.

    Args:
        name: as its world calls it.
        spec: what it sees and does.
        tensors: of its network.
    """

    name: str
    spec: EnvSpec
    tensors: Shapes


def header(
    config: Config, agents: Sequence[Agent], command: Sequence[str], versions: Mapping[str, Any]
) -> dict[str, Any]:
    """What a policy file says of a policy, but for `frames` and `returns`.

    Args:
        config: of the run; its paths and its logger's settings are left out.
        agents: in the order of the flat weights.
        command: the command lines of the run.
        versions: of Python and packages.
    """
    return {
        "format": FORMAT,
        "versions": dict(versions),
        "config": to_dict(_without_paths(config)),
        "agents": [{"name": one.name, "spec": _spec_dict(one.spec), "tensors": one.tensors} for one in agents],
        "command": list(command),
    }


def _without_paths(config: Config) -> Config:
    """The configuration without what is of one machine."""
    opponents = replace(config.opponents, checkpoint_paths=[], start_from=None, checkpoints=0.0, checkpoints_end=None)
    replay = replace(config.replay, scratch_dir=None, start_from=None)
    return replace(
        config, run_dir=None, resume=None, replay=replay, opponents=opponents,
        agents=replace(config.agents, start_from={}), logger=LoggerConfig(),
    )  # fmt: skip


def header_in(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The header in a policy that `trainer.run_folder.checkpoint.load` has read; None in files without one."""
    found: dict[str, Any] | None = json.loads(state["policy"]) if "policy" in state else None
    return found


def config_of(header: Mapping[str, Any], path: Path) -> Config:
    """The configuration in a header.

    Raises:
        ConfigError: it has a key that this trainer does not know.
    """
    return from_dict(header["config"], str(path))


def agents_of(header: Mapping[str, Any], path: Path) -> list[Agent]:
    """The agents in a header.

    Raises:
        ReadError: it describes spaces in another way than this trainer.
    """
    try:
        return [
            Agent(one["name"], _spec_of(one["spec"]), [(name, list(shape)) for name, shape in one["tensors"]])
            for one in header["agents"]
        ]
    except (TypeError, LookupError, ValueError) as error:
        raise ReadError(
            f"{path} describes its spaces in a way that this trainer does not know ({first_line(error)}): use the "
            f"trainer that wrote it, {header.get('versions')}"
        ) from error


def write(path: Path, header: Mapping[str, Any], flat: Tensor) -> None:
    """Write a policy file, whole or not at all.

    Args:
        path: of the file.
        header: from the function of that name, with `frames` and `returns`.
        flat: the weights of all agents, one after another, float32 [sum of numel].

    Raises:
        OSError: it could not be written; an older file at `path` is still there.
    """
    from safetensors.torch import save

    named = _named(header)
    parts = flat.detach().cpu().float().split([int(torch.Size(shape).numel()) for _, shape in named])
    tensors = {name: part.reshape(shape).clone() for (name, shape), part in zip(named, parts, strict=True)}
    data = save(tensors, {KEY: json.dumps(header, allow_nan=False), CHECKSUM: f"{0:08x}"})
    path.parent.mkdir(exist_ok=True)  # without parents: a run folder that was removed is not made again
    at = data.index(UNSET) + len(UNSET) - 9
    with manifest.written(path) as file:
        for piece in (data[:at], f"{zlib.crc32(data):08x}".encode(), data[at + 8 :]):
            file.write(piece)


def is_policy_file(data: bytes) -> bool:
    """Whether bytes begin as a safetensors file does: with the length of a JSON object."""
    return len(data) > 9 and data[8:9] == b"{" and struct.unpack("<Q", data[:8])[0] <= len(data)


def parse(path: Path, data: bytes) -> tuple[dict[str, Any], Tensor]:
    """Header and flat weights of a policy file.

    Args:
        path: for the sentences of errors.
        data: its content.

    Raises:
        ReadError: it is damaged, or no policy file.
        ConfigError: its format is unknown.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    damaged = f"checkpoint {path} is torn or damaged"
    try:
        end = min(8 + struct.unpack("<Q", data[:8])[0], len(data))
        text = json.loads(data[8:end]).get("__metadata__", {}).get(KEY)
        found = None if text is None else json.loads(text)
    except (ValueError, AttributeError, TypeError, RecursionError, struct.error) as error:
        raise ReadError(f"{damaged} ({first_line(error)}): delete it or use another") from error
    mark = SET.search(data, 8, end)
    wrong = mark and zlib.crc32(data[: mark.start()] + UNSET + data[mark.end() :]) != int(mark[1], 16)
    if wrong or (found is not None and not mark):
        raise ReadError(f"{damaged} (its checksum is wrong): delete it or use another")
    if not isinstance(found, dict):
        raise ReadError(f"{path} holds no policy of this trainer (its metadata has no {KEY}): name one")
    if found.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has format {found.get('format')}, and this trainer knows policy files of format {FORMAT}: use the "
            f"trainer that wrote it, {found.get('versions')}"
        )
    try:
        tensors = load(data)
        flat = torch.cat([tensors[name].reshape(-1) for name, _ in _named(found)]).float()
    except (SafetensorError, LookupError, TypeError, RuntimeError) as error:
        raise ReadError(f"{damaged} ({first_line(error)}): delete it or use another") from error
    return found, flat


def state_of(path: Path, data: bytes) -> dict[str, Any]:
    """A policy file's content as that of a policy in a checkpoint: `weights`, `frames`, `eval_return_mean`, `policy`.

    Raises:
        ReadError, ConfigError: as `parse`.
    """
    found, flat = parse(path, data)
    mean = found.get("returns", {}).get("eval_return_mean")
    return {
        "format": found["format"], "weights": flat, "frames": int(found.get("frames", 0)),
        "eval_return_mean": float("nan") if mean is None else float(mean), "policy": json.dumps(found),
    }  # fmt: skip


def commands_of(path: Path) -> list[str]:
    """The command lines in a run's command.txt; none where it cannot be read."""
    try:
        return read_text(path).splitlines()
    except ReadError:
        return []


def _named(header: Mapping[str, Any]) -> Shapes:
    several = len(header["agents"]) > 1
    return [
        (f"{one['name']}/{name}" if several else name, shape)
        for one in header["agents"]
        for name, shape in one["tensors"]
    ]


def _spec_dict(spec: EnvSpec) -> dict[str, Any]:
    kind = next(name for name, kind in ACTIONS.items() if isinstance(spec.action, kind))
    return {**asdict(spec), "action": {"kind": kind, **asdict(spec.action)}, "notes": []}


def _spec_of(values: Mapping[str, Any]) -> EnvSpec:
    action = _frozen(values["action"])
    kind = ACTIONS[action.pop("kind")]
    leaves = tuple(Leaf(**_frozen(leaf)) for leaf in values["leaves"])
    return EnvSpec(**{**_frozen(values), "leaves": leaves, "action": kind(**action)})


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that they were."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
