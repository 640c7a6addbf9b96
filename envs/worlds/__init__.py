"""Grid worlds in which several agents act, stepped many at a time in NumPy: `WORLDS` lists them.

    world = WORLDS["treasurehunt"](num_worlds=64, num_agents=2)
    observation = world.reset(seed)               # [num_worlds, num_agents, *world.observation_shape]
    observation, reward = world.step(actions)     # actions int64 [num_worlds, num_agents]; reward float32, likewise

All worlds of a vector are in the same turn. An episode ends after a number of turns: the caller resets when
`world.turn` is `world.max_turns`. World i of a vector that was reset with `seed` is the single world that was reset
with `seed + i`.

A turn: entities first, in row-major order; then all agents observe; then they act one after another, in the order of
`world.agents`, and each action takes effect before the next. `step` does all of this. To let every agent observe just
before it acts, call the same methods in another order (after `reset`, which begins the first turn):

    for number in range(len(world.agents)):
        observation = world.observe(number)       # [num_worlds, *world.observation_shape]
        world.act(number, actions_of(observation))
    reward = world.reward
    world.entities_turn()                         # begins the next turn

`trainer.envs.worlds.parallel` makes PettingZoo environments of them.
"""

from __future__ import annotations

from trainer.envs.worlds.cleanup import Cleanup
from trainer.envs.worlds.iowa import Iowa
from trainer.envs.worlds.tag import Tag
from trainer.envs.worlds.treasurehunt import TreasureHunt

__all__ = ["WORLDS", "Cleanup", "Iowa", "Tag", "TreasureHunt"]

WORLDS = {"treasurehunt": TreasureHunt, "cleanup": Cleanup, "tag": Tag, "iowa": Iowa}
