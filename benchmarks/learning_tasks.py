"""Tasks and algorithms of the learning table (`benchmarks.learning`), and the changes that made older runs outdated."""

from __future__ import annotations

from dataclasses import dataclass

NUMBERED: dict[str, tuple[str, ...]] = {  # for tasks with numbered actions
    "dqn": ("algorithm.double=false",),
    "double + dueling": ("algorithm.dueling=true",),
    "munchausen": ("algorithm=munchausen",),
    "qrdqn": ("algorithm=qrdqn",),
    "iqn": ("algorithm=iqn",),
    "c51": ("algorithm=c51",),
    "rainbow": ("algorithm=rainbow",),
}
BOX: dict[str, tuple[str, ...]] = {  # for tasks whose actions are points in a box
    "sac": ("algorithm=sac",),
    "td3": ("algorithm=td3",),
    "tqc": ("algorithm=tqc",),
}
ALGORITHMS = {**NUMBERED, **BOX}


@dataclass(frozen=True)
class Change:
    """A change of the trainer after which the command of an older run gives other results.

    Args:
        commit: that made the change.
        what: the change in words.
        algorithms: whose results change.
        tasks: whose results change; empty: all.
    """

    commit: str
    what: str
    algorithms: tuple[str, ...]
    tasks: tuple[str, ...] = ()


CHANGES = (
    Change("594b125", "the loss is mean(w l) of the importance weights w, no longer sum(w l) / sum(w)", ("rainbow",)),
    Change(
        "594b125", "values begin at 0, no longer in the middle of the support", ("c51", "rainbow"),
        ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),  # the others' supports are symmetric about 0
    ),
    Change(
        "a289965", "importance weights are divided by the largest of their batch, no longer by the largest of all rows",
        ("rainbow",),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A line of the table.

    Args:
        name: the environment, and what is special.
        arguments: of the run.
        bar: median return that the best algorithm should reach.
        reference: the published result that the bar comes from.
        algorithms: those that are run.
        seeds: how many of the requested seeds are run.
    """

    name: str
    arguments: tuple[str, ...]
    bar: float
    reference: str
    algorithms: tuple[str, ...] = tuple(NUMBERED)
    seeds: int = 5


TASKS = (
    Task("CartPole-v1", ("preset=cartpole",), 500, "rl-zoo3 DQN 500"),
    Task("Acrobot-v1", ("preset=acrobot",), -75, "rl-zoo3 QR-DQN -69.1, DQN -76.6"),
    Task("MountainCar-v0", ("preset=mountaincar",), -101, "rl-zoo3 DQN -100.8"),
    Task("LunarLander-v3", ("preset=lunarlander",), 255, "SLM-Lab DDQN+PER 265.9"),
    Task(
        "LunarLander-v3, 100k frames",
        (
            "preset=lunarlander", "budget_frames=100_000", "schedule.frames_per_update=1", "learner.batch_size=64",
            "learner.learning_rate=1e-3",
        ),
        200, "rl-zoo3 DQN 154.4", ("munchausen",),
    ),
    *(
        Task(
            f"MinAtar {game}", ("preset=minatar", f"env.id=MinAtar/{game}-v1"), at_1m,
            "the DQN of MinAtar's own learning curves at 1M frames, read off the picture: mean return while exploring",
            ("dqn", "rainbow"), 3,
        )
        for game, at_1m in (
            ("Breakout", 9.2), ("Asterix", 7.3), ("Freeway", 47.9), ("Seaquest", 1.0), ("SpaceInvaders", 33.0)
        )
    ),
    Task("Pendulum-v1", ("preset=pendulum",), -150, "rl-zoo3 TD3 -152, SAC -157", ("sac", "td3")),
    Task("MountainCarContinuous-v0", ("preset=mountaincar_continuous",), 94, "rl-zoo3 SAC 94.7", ("td3",)),
    Task(
        "LunarLander-v3, continuous", ("preset=lunarlander_continuous",), 270,
        "rl-zoo3 TD3 207 at 300k, SAC 260 and TQC 278 at 500k", ("sac", "tqc"),
    ),
    Task("BipedalWalker-v3", ("preset=bipedalwalker",), 310, "rl-zoo3 SAC 298, TQC 330", ("sac", "tqc")),
    Task(
        "HalfCheetah-v5", ("preset=halfcheetah",), 10_500, "rl-zoo3 SAC 9,535, TD3 9,656, TQC 12,090 (v3)", ("tqc",), 3
    ),
)  # fmt: skip
