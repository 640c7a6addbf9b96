"""Group runs by what differs in their configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.comparing.runs import Run
from trainer.config.fields import ConfigError, hint

# Keys, and sections (with a dot), that name a run, say where it runs or what it writes: they do not tell groups apart.
LEFT_OUT = (
    "seed", "run_dir", "resume", "env.id", "replay.scratch_dir", "learner.device", "learner.execution",
    "learner.num_threads", "learner.parallel_parts", "learner.prefetch", "agents.hang_seconds", "evaluator.nice",
    "evaluator.video", "evaluator.final_max_seconds",
    "checkpoint.", "faults.", "logger.", "telemetry.",
)  # fmt: skip
# Where several keys tell the same groups apart, the first one names them; others follow in the configuration's order.
FIRST = ("algorithm.name", "preset", "schedule.name")
LAST = ("budget_frames",)
WITHOUT_KEY = ("algorithm.name", "preset", "env.id")  # their values speak for themselves
MISSING = "–"


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing that counts.

    Args:
        label: what tells them from the other groups.
        values: key -> value, for each key that differs between groups.
        runs: in the order in which they were named; of one environment or of several.
    """

    label: str
    values: dict[str, Any]
    runs: list[Run]


def environments(runs: Sequence[Run]) -> list[str]:
    """The ids of the environments that the runs play, each one once."""
    return list(dict.fromkeys(run.env_id for run in runs))


def differences(runs: Sequence[Run]) -> list[str]:
    """The keys with several values among runs of the same environment, in the order in which they name groups.

    What differs only between environments comes with these, so it is no difference.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    keys = [*FIRST, *(key for key in keys if key not in FIRST + LAST), *LAST]
    return [key for key in keys if not key.startswith(LEFT_OUT) and _splits(runs, [], key)]


def groups(runs: Sequence[Run], keys: Sequence[str] | None = None) -> list[Group]:
    """Group the runs by the values of some keys.

    Args:
        runs: at least one.
        keys: None: as few of `differences(runs)` as tell the same groups apart.

    Raises:
        ConfigError: no run has one of the keys.
    """
    if keys is None:
        chosen: list[str] = []
        for key in differences(runs):
            if _splits(runs, chosen, key):
                chosen.append(key)
    else:
        chosen = [_known(key, runs) for key in keys]
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(_text([run.config.get(key, MISSING) for key in chosen]), []).append(run)
    found = []
    for some in members.values():
        values = {key: some[0].config.get(key, MISSING) for key in chosen}
        found.append(Group(_label(values, runs), values, some))
    return found


def value_text(value: Any) -> str:
    """A value of the configuration as it is typed."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _label(values: Mapping[str, Any], runs: Sequence[Run]) -> str:
    if not values:
        return str(runs[0].config["algorithm.name"])
    leaves = [key.rpartition(".")[2] for key in values]
    return ", ".join(
        value_text(value) if key in WITHOUT_KEY else f"{leaf if leaves.count(leaf) == 1 else key}={value_text(value)}"
        for (key, value), leaf in zip(values.items(), leaves, strict=True)
    )


def _splits(runs: Sequence[Run], chosen: Sequence[str], key: str) -> bool:
    """Whether `key` tells runs of one environment apart that have the same values of the keys in `chosen`."""
    without = {_text([run.env_id, *(run.config.get(name, MISSING) for name in chosen)]) for run in runs}
    with_it = {_text([run.env_id, *(run.config.get(name, MISSING) for name in [*chosen, key])]) for run in runs}
    return len(with_it) > len(without)


def _known(key: str, runs: Sequence[Run]) -> str:
    keys = dict.fromkeys(name for run in runs for name in run.config)
    for name in (key, f"{key}.name"):
        if name in keys:
            return name
    raise ConfigError(f"--group {key}: no run has this key{hint(key, keys)}")


def _text(values: Sequence[Any]) -> str:
    return json.dumps(values, default=str)
