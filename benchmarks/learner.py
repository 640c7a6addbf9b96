"""Updates per second of the trainer's learner, sampling included, against a bare PyTorch loop.

    python -m benchmarks.learner [--json FILE] [--compile]

The learner is the trainer's: batches from the memory-mapped replay, several gathered at once, its loss, clipping,
optimiser and target network. The bare loop is double DQN as one would write it by hand in eager PyTorch, with the same
sizes, clipping, memory format and fused Adam, on batches that are already in memory. Further rows, without a bar, show
the effect of the learner's settings. All of them take turns in this process, on one thread.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from torch import nn

    from trainer.config.sections import Config
    from trainer.learning.feed import Batch
    from trainer.training.system import System

FILLED_FRAMES = 5_000
IMAGES = (
    "preset=generic", "env.id=counting", "env.backend=counting", "env.kwargs.image=true", "env.kwargs.num_actions=6",
    "env.frame_stack=4", "algorithm.cnn=nature",
)  # fmt: skip
CASES = {  # name -> configuration
    "MLP 120-84, batch 128": ("preset=cartpole", "algorithm.hidden_sizes=[120,84]", "learner.batch_size=128"),
    "MLP 256-256, batch 128": ("preset=lunarlander", "algorithm.hidden_sizes=[256,256]", "learner.batch_size=128"),
    "Nature CNN, batch 32": (*IMAGES, "algorithm.hidden_sizes=[512]", "learner.batch_size=32"),
}
BAR = 0.90
COMMON = ("schedule=sequential", "algorithm.n_step=1", "algorithm.double=true", "replay.capacity_frames=10_000")


def variants(config: Config, with_compile: bool) -> dict[str, dict[str, Any]]:
    """Settings of the section `learner` to compare, by name; the first has the trainer's defaults."""
    found: dict[str, dict[str, Any]] = {"": {}, "eager": {"execution": "eager"}}
    if with_compile:
        found["compile"] = {"execution": "compile"}
    found["one batch gathered at a time"] = {"prefetch_batches": 1}
    if config.env.frame_stack > 1:
        found["channels_last off"] = {"channels_last": False}
        found["bfloat16"] = {"precision": "bfloat16"}
    return found


def plain_network(config: Config, system: System) -> nn.Module:
    """The network by hand."""
    import torch
    from torch import nn

    leaf = system.plans[0].spec.leaves[0]
    layers: list[nn.Module] = []
    if leaf.kind == "image":
        layers += [
            nn.Conv2d(leaf.stack, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(), nn.Flatten(),
        ]  # fmt: skip
        width = 3136  # 64 maps of 7 x 7 of 84 x 84
    else:
        width = leaf.shape[0]
    for size in config.algorithm.hidden_sizes:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    network = nn.Sequential(*layers, nn.Linear(width, system.plans[0].spec.num_actions))
    if _channels_last(config):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _channels_last(config: Config) -> bool:
    return config.env.frame_stack > 1 and config.learner.channels_last


def bare_update(config: Config, system: System, batches: list[Batch]) -> Callable[[], None]:
    """Double DQN by hand over batches in memory, one update a call."""
    import torch
    from torch import nn

    learner, network = config.learner, plain_network(config, system)
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=learner.learning_rate, fused=True)
    calls, max_grad_norm = 0, learner.max_grad_norm
    assert max_grad_norm is not None

    def seen(image_or_vector: torch.Tensor) -> torch.Tensor:
        if not _channels_last(config):
            return image_or_vector.float()
        return image_or_vector.to(torch.float32, memory_format=torch.channels_last) / 255

    def update() -> None:
        nonlocal calls
        batch = batches[calls % len(batches)]
        calls += 1
        observation, following = seen(batch["observation"]), seen(batch["next", "observation"])
        with torch.no_grad():
            best = network(following).argmax(1, keepdim=True)
            value = target(following).gather(1, best)
            goal = batch["next", "reward"] + config.algorithm.gamma * ~batch["next", "terminated"] * value
        loss = nn.functional.smooth_l1_loss(network(observation).gather(1, batch["action"].unsqueeze(1)), goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_grad_norm)
        optimizer.step()
        if calls % config.algorithm.target_update_every_updates == 0:
            target.load_state_dict(network.state_dict())

    return update


def learner_updates(config: Config, system: System, settings: dict[str, Any]) -> tuple[Callable[[], None], int]:
    """A function that makes so many updates per call, by the trainer's learner with `settings`."""
    from dataclasses import replace

    from trainer.algorithms import build
    from trainer.learning.feed import Feed
    from trainer.learning.update import Updater

    section = replace(config.learner, **settings)
    algorithm = build(config.algorithm, section, system.plans[0].spec)
    learner = Updater(algorithm, section, system.device)

    feed = Feed(system.learners.local[0].replay, system.device)

    def update() -> None:
        for batch in feed.batches(section.prefetch_batches):
            learner.update(batch)

    return update, section.prefetch_batches


def measure(name: str, seconds: float, repeats: int, with_compile: bool) -> list[Row]:
    """The rows of one of `CASES`: the one with a bar first."""
    from benchmarks import parts
    from trainer.learning.feed import flat

    config = parts.config(*CASES[name], *COMMON, parts.BUDGET)
    with parts.opened(config) as system:
        while system.total_frames() < FILLED_FRAMES:
            parts.rollouts(system)[0].collect_round()
        batches = [flat(system.learners.local[0].replay.sample()) for _ in range(8)]
        calls = {"bare": (bare_update(config, system, batches), 1)}
        for variant, settings in variants(config, with_compile).items():
            calls[variant] = learner_updates(config, system, settings)
        for call, _ in calls.values():
            parts.calls_per_s(call, min(1.0, seconds))  # the first calls prepare and optimise
        found = parts.by_turns(
            {who: partial(parts.calls_per_s, call, seconds, count) for who, (call, count) in calls.items()},
            repeats,
        )
    bare = statistics.median(found["bare"])
    rows = []
    for variant in calls.keys() - {"bare"}:
        rows.append(
            Row(
                f"learner, {name}" + (f", {variant}" if variant else ""),
                parts.ratio(found[variant], found["bare"]),
                bar=None if variant else BAR,
                detail=f"learner {statistics.median(found[variant]):,.1f}, bare loop {bare:,.1f} updates/s",
            )
        )
    return sorted(rows, key=lambda row: (row.bar is None, row.name))


def main() -> None:
    arguments = parser("Updates per second of the learner against a bare PyTorch loop.", seconds=2.0)
    arguments.add_argument("--compile", action="store_true", help="measure torch.compile too (needs a C++ compiler)")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    for name in CASES:
        rows += measure(name, args.seconds, args.repeats, args.compile)
    show("Learner with sampling / bare PyTorch loop on batches in memory", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
