"""The agents of a run: each has its own configuration, streams, board, weights and storage; nothing is shared.

A run of one agent is a run of N agents with N = 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyMemmapStorage

from trainer.algorithms import make_policy
from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host import seeds
from trainer.memory.blocks import shared_blocks
from trainer.memory.boards import VERSIONS_KEPT, AgentBoard
from trainer.memory.fields import fields_of
from trainer.memory.weights import WeightsBoard, WeightSlots, ordered_leaves
from trainer.replay.streams import StreamLayout, close_episodes, layout, open_storage

NAMING = ("overrides", "frozen", "start_from")  # keys of the section `agents` that name agents


@dataclass(frozen=True)
class AgentPlan:
    """All that an agent's parts are built from, in any process; crosses a process border once, at the start.

    Args:
        name: as the world calls it.
        number: its place among the agents, from 0.
        config: the run's, with the agent's own values.
        spec: what it sees and does.
        streams: the layout of its replay.
        board: what its collectors and its learner count.
        weights: from its learner to its collectors.
        storage: of its replay.
        folder: where its checkpoints go.
        seed: of its network and of its draws.
    """

    name: str
    number: int
    config: Config
    spec: EnvSpec
    streams: StreamLayout
    board: AgentBoard
    weights: WeightsBoard
    storage: LazyMemmapStorage
    folder: Path
    seed: int


def plan_agents(
    config: Config, world: Sequence[tuple[str, EnvSpec]], run_dir: Path, scratch: Path,
    workers: Sequence[int] | None = None,
) -> list[AgentPlan]:  # fmt: skip
    """A plan for each agent of a world, with empty boards and an empty replay in `scratch`.

    Args:
        config: of the run.
        world: names and specs of the agents.
        run_dir: the run folder.
        scratch: folder of the replay.
        workers: whose rows the replay has disk space for; None: of all.

    Raises:
        ConfigError: a key of `agents` names an agent, or a key of its own, that there is not.
    """
    names = [name for name, _ in world]
    for key in NAMING:
        for name in getattr(config.agents, key):
            if name not in names:
                raise ConfigError(f"agents.{key}.{name} names no agent of {config.env.id}: it has {', '.join(names)}")
    if set(names) <= set(config.agents.frozen):
        raise ConfigError(
            f"agents.frozen names every agent of {config.env.id} ({', '.join(names)}), so nothing would be trained: "
            "leave one out, or see how they play by python -m trainer.eval"
        )
    configs = [agent_config(config, name) for name in names]  # all of them can be, before anything is made
    if len(world) == 1:
        return _plans(names, configs, [world[0][1]], [run_dir], [scratch], workers)
    folders = [RunFolder(run_dir).agents / name for name in names]
    return _plans(names, configs, [spec for _, spec in world], folders, [scratch / name for name in names], workers)


def plan_local_agents(
    config: Config, world: Sequence[tuple[str, EnvSpec]], run_dir: Path, scratch: Path
) -> list[AgentPlan]:
    """A plan for each local agent of the schedule `shared_gradient`: the same agent, with a replay of its own.

    Raises:
        ConfigError: the world has several agents, or a key of `agents` names one.
    """
    for key in NAMING:
        if getattr(config.agents, key):
            raise ConfigError(
                f"agents.{key} does nothing with schedule=shared_gradient, which trains one agent: leave it out"
            )
    if len(world) > 1:
        raise ConfigError(
            f"schedule=shared_gradient trains one agent, and {config.env.id} has {len(world)}: use schedule=async"
        )
    count = config.schedule.num_agents
    names = [f"local_{number}" for number in range(count)]
    folders = [RunFolder(run_dir).agents / name for name in names]
    return _plans(names, [config] * count, [world[0][1]] * count, folders, [scratch / name for name in names])


def _plans(
    names: Sequence[str], configs: Sequence[Config], specs: Sequence[EnvSpec], folders: Sequence[Path],
    scratch: Sequence[Path], workers: Sequence[int] | None = None,
) -> list[AgentPlan]:  # fmt: skip
    """Plans with empty boards and, in `scratch`, empty replays; what is kept of the agents goes into `folders`."""
    streams = [streams_of(config) for config in configs]
    numels = [numel(config, spec) for config, spec in zip(configs, specs, strict=True)]
    blocks = iter(
        shared_blocks(
            [fields_of(AgentBoard, W=each.num_workers, S=each.num_streams) for each in streams]
            + [fields_of(WeightSlots, N=n) for n in numels]
        )
    )
    boards = [AgentBoard(each.num_workers, each.num_streams, next(blocks)) for each in streams]
    weights = [WeightsBoard(n, next(blocks)) for n in numels]
    for folder in (*scratch, *(RunFolder(path).checkpoints for path in folders)):
        folder.mkdir(parents=True, exist_ok=True)
    return [
        AgentPlan(
            name=name,
            number=i,
            config=configs[i],
            spec=specs[i],
            streams=streams[i],
            board=boards[i],
            weights=weights[i],
            storage=open_storage(specs[i], streams[i], scratch[i], wants_values(configs[i]), workers),
            folder=folders[i] / "checkpoints",
            seed=seeds.of_agent(configs[i].seed, i),
        )
        for i, name in enumerate(names)
    ]


def streams_of(config: Config) -> StreamLayout:
    """The layout of an agent's replay."""
    assert config.collector.num_workers is not None  # `config` is resolved
    return layout(config.replay.capacity_frames, config.collector.num_workers, config.collector.envs_per_worker)


def wants_values(config: Config) -> bool:
    """Whether collectors store the values that they act by, for first priorities."""
    return config.algorithm.prioritized and config.replay.initial_priority == "collector"


def numel(config: Config, spec: EnvSpec) -> int:
    """Number of float32 values of an agent's weights."""
    return sum(leaf.numel() for leaf in ordered_leaves(TensorDict.from_module(make_policy(config, spec))))


def model_id(plan: AgentPlan) -> str:
    """The name by which TorchRL knows an agent's weights; the first one is the policy that it wants."""
    return f"policy_{plan.number}" if plan.number else "policy"


def shape_key(plan: AgentPlan) -> tuple:
    """Equal for agents whose networks may be stacked for acting: the same inputs, layers and outputs.

    Convolutions are not stacked: one of them keeps a core busy, and in a stack they lose their memory format.
    """
    alone = plan.number if any(leaf.kind == "image" for leaf in plan.spec.leaves) else None
    return plan.spec.leaves, plan.spec.action, repr(plan.config.algorithm), alone


def update_key(plan: AgentPlan) -> tuple:
    """Equal for agents whose updates may be stacked."""
    learner = plan.config.learner
    same = (learner.batch_size, learner.max_grad_norm, learner.precision, learner.execution, learner.adam_eps)
    return *shape_key(plan), *same


def without_scheme(plan: AgentPlan) -> AgentPlan:
    """The plan with a weights board of its own on the same memory: TorchRL ties a scheme to one collector."""
    return dataclasses.replace(plan, weights=plan.weights.another())


def published_updates(plan: AgentPlan) -> int:
    """Updates after which the newest weights on an agent's board were published."""
    made, version = plan.board.version_updates, plan.weights.version
    return int(made[version % VERSIONS_KEPT] or made[(version - 1) % VERSIONS_KEPT])  # it may have died between the two


def published(plan: AgentPlan) -> Tensor:
    """The newest weights on an agent's board, float32 [numel]."""
    flat = torch.zeros(plan.weights.numel)
    plan.weights.reader().pull(flat)
    return flat


def end_episodes(agents: Sequence[AgentPlan], worker: int | None = None) -> None:
    """End the open episodes in the agents' replays where nobody goes on with them: of a worker that is gone, or all."""
    for agent in agents:
        cursor = agent.board.cursor
        streams = slice(0, len(cursor)) if worker is None else agent.streams.streams_of(worker)
        if worker is not None:
            cursor[streams] = cursor[streams].max()  # it may have died between two of them, when all rows were written
        columns = {name: column.numpy() for name, column in agent.storage._storage.items()}
        close_episodes(columns, agent.streams, np.arange(streams.start, streams.stop), cursor[streams].copy())
