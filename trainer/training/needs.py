"""How much memory and disk a run needs, from its configuration; `trainer.host.resources` checks what is free."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config.overrides import agent_config
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host.resources import Needs
from trainer.memory.blocks import bytes_of
from trainer.memory.boards import AgentBoard
from trainer.memory.fields import fields_of
from trainer.memory.weights import WeightSlots
from trainer.replay.streams import row_bytes
from trainer.roles.agents import numel, streams_of, wants_values

CHECKPOINT = 4  # times the weights: themselves, target, and Adam's two moments
SHARED_AGENT = 6  # times the weights: themselves and two moments, two slots each (`trainer.shared_gradient.shared`)
SLACK = 2**20  # bytes for control boards and counters


def needs_of(config: Config, world: Sequence[tuple[str, EnvSpec]]) -> Needs:
    """Memory and disk of a run, in bytes; builds each agent's network once to count its weights."""
    copies = config.schedule.num_agents if config.schedule.kind.local_agents else 1
    replay = shared = kept = weights = 0
    for name, spec in world:
        changed = agent_config(config, name)
        streams = streams_of(changed)
        rows = row_bytes(spec, wants_values(changed)) * streams.rows
        count = numel(changed, spec)
        weights += 4 * count
        replay += copies * rows
        shared += copies * bytes_of(fields_of(AgentBoard, W=streams.num_workers, S=streams.num_streams))
        shared += copies * bytes_of(fields_of(WeightSlots, N=count))
        kept += copies * (rows if config.checkpoint.replay else 0)
        kept += copies * (config.checkpoint.keep_last + 1) * CHECKPOINT * 4 * count  # the one being written
    shared += weights  # that the evaluator reads
    if config.schedule.kind.local_agents:  # on a device, a gradient of each local agent lies there instead
        shared += max(SHARED_AGENT, copies + 2) * weights
    if world[0][1].against_opponents:
        slots = config.opponents.pool_size + len(config.opponents.checkpoint_paths)
        shared += slots * weights
        kept += slots * weights
    workers = 0 if config.cluster.remote else copies * streams.num_workers
    return Needs(replay, shared + SLACK, kept + 2 * weights, workers)
