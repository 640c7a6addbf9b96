"""The card of a shared policy: README.md with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from trainer.config.fields import shown
from trainer.config.run_config import to_dict
from trainer.config.sections import Config

LIBRARY = "torchrl-trainer"
ONES_OWN = ("run_dir=", "resume=", "replay.scratch_dir=", "replay.start_from=", "logger")  # of no use to others
CARD = """\
---
{metadata}---

# {algorithm} on {env_id}

A policy trained by {algorithm} on `{env_id}` for {frames} frames.

{video}| returns of greedy episodes | mean | standard deviation | episodes |
|---|---|---|---|
{returns}

## Use it

    import trainer
    policy = trainer.load_policy("hub:{name}")
    action = policy(observation)

or, on the command line, `python -m trainer.eval hub:{name}` and `python -m trainer.play hub:{name}`.

## How it was trained

{commands}

{versions}

![learning curve](curve.png)

## Configuration

```yaml
{configuration}```
"""


def card(
    name: str,
    config: Config,
    summary: Mapping[str, Any],
    commands: Sequence[str],
    versions: Mapping[str, Any],
    video: str,
) -> str:
    """The text of the card.

    Args:
        name: `owner/name` in the hub.
        config: of the run; its paths are left out.
        summary: of the run.
        commands: the command lines of the run.
        versions: as in versions.json.
        video: name of the video file beside the card, or "".
    """
    rows = [
        f"| {policy} policy | {_number(summary.get(f'{key}_mean'))} | {_number(summary.get(f'{key}_std'))} | "
        f"{summary.get(episodes, '')} |"
        for policy, key, episodes in (
            ("best", "eval_return", "eval_episodes"), ("last", "eval_last_return", "eval_last_episodes")
        )
        if summary.get(f"{key}_mean") is not None
    ]  # fmt: skip
    packages = {key: value for key, value in versions.get("packages", {}).items() if value}
    used = ", ".join(f"{key} {value}" for key, value in packages.items())
    return CARD.format(
        metadata=yaml.safe_dump(_metadata(config, summary), sort_keys=False),
        algorithm=config.algorithm.name,
        env_id=shown(config.env.id),
        frames=f"{summary.get('frames', 0):,}",
        video=f"<video controls loop muted src='{video}'></video>\n\n" if video else "",
        returns="\n".join(rows) or "| no final evaluation | | | |",
        name=name,
        commands="\n".join(f"    {command}" for command in commands) or "The command is not known.",
        versions=f"Python {versions.get('python', '?')}, {used}; commit {versions.get('git_commit') or 'unknown'}.",
        configuration=yaml.safe_dump(_without_paths(config), sort_keys=False, allow_unicode=True),
    )


def for_others(commands: Sequence[str]) -> list[str]:
    """Command lines without folders and accounts, and by the name under which others have the program."""
    found = []
    for command in commands:
        program, *words = shlex.split(command)
        called = ["python", "-m", "trainer.run"] if program.endswith(".py") else [program]
        found.append(shlex.join([*called, *(word for word in words if not word.startswith(ONES_OWN))]))
    return found


def _metadata(config: Config, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub shows and finds the policy by: tags, and the mean return as its result."""
    found: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", config.algorithm.name, config.env.id],
    }
    if summary.get("eval_return_mean") is not None:
        value = f"{_number(summary['eval_return_mean'])} +/- {_number(summary.get('eval_return_std'))}"
        found["model-index"] = [
            {
                "name": config.algorithm.name,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"name": config.env.id, "type": config.env.id},
                        "metrics": [{"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}],
                    }
                ],
            }
        ]
    return found


def _without_paths(config: Config) -> dict[str, Any]:
    """The configuration without what is of one machine or one account."""
    found = to_dict(config)
    for section in ("logger", "telemetry", "checkpoint", "faults"):
        del found[section]
    for key in ("run_dir", "resume"):
        del found[key]
    del found["replay"]["scratch_dir"]
    return found


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""
