"""What a run is handed besides its agents: what it takes over from another one, and what its local agents share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer.learning.update import Updater
from trainer.memory.boards import ControlBoard
from trainer.shared_gradient.shared import SharedAgent
from trainer.shared_gradient.shared_device import DeviceAgent


@dataclass
class Resumed:
    """What a run takes over from the one that it goes on with.

    Args:
        starts: of each worker, how many processes it had.
        exact: the workers go on in the middle of their episodes.
        run: what the training loop had kept of itself.
    """

    starts: list[int] = field(default_factory=list)
    exact: bool = False
    run: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What the schedule `shared_gradient` has instead of learners and collectors of its own.

    Args:
        agent: weights and optimiser, in shared memory or on the device.
        updater: of the same network, to look at the weights with.
        controls: control board of each local agent.
    """

    agent: SharedAgent | DeviceAgent
    updater: Updater
    controls: list[ControlBoard]
