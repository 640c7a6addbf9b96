"""Stable-Baselines3's part of `benchmarks.agreement`: it makes the updates on the given weights, batches and noise.

    PYTHON_WITH_SB3 -m benchmarks.peer_agreement FILE
    PYTHON_WITH_SB3 -m benchmarks.peer_agreement --serve sac 1

It imports nothing of the trainer. FILE has what is given, and takes the weights afterwards. The second one is its part
of `benchmarks.continuous`.
"""

from __future__ import annotations

import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from torch import nn


class Made(gym.Env):
    """Spaces without an environment."""

    def __init__(self, seen: int, action: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (seen,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (action,), np.float32)


def linear(module: nn.Module) -> list[torch.Tensor]:
    """Weight and bias of each linear layer of a module."""
    return [t for part in module.modules() if isinstance(part, nn.Linear) for t in (part.weight, part.bias)]


def actor_layers(model: Any) -> list[torch.Tensor]:
    """Of the actor; SAC has a layer for each of mean and deviation, which are one layer's rows in the trainer."""
    if isinstance(model, TD3):
        return linear(model.actor.mu)
    return linear(model.actor.latent_pi)


def put(model: Any, before: dict[str, list[list[torch.Tensor]]]) -> None:
    """Give the model its first weights."""
    actor = before["actor"][0]
    networks = [(actor_layers(model), actor)]
    if isinstance(model, SAC):
        half = len(actor[-1]) // 2
        heads = [model.actor.mu, model.actor.log_std]
        networks[0] = (networks[0][0], actor[:-2])
        for i, head in enumerate(heads):
            rows = slice(i * half, (i + 1) * half)
            networks.append(([head.weight, head.bias], [actor[-2][rows], actor[-1][rows]]))
    for name, critic in (("critics", model.critic), ("targets", model.critic_target)):
        networks += [(linear(net), own) for net, own in zip(critic.q_networks, before[name], strict=True)]
    if isinstance(model, TD3):
        networks.append((linear(model.actor_target.mu), actor))
    with torch.no_grad():
        for mine, given in networks:
            for parameter, tensor in zip(mine, given, strict=True):
                parameter.copy_(tensor)


def taken(model: Any) -> dict[str, list[list[torch.Tensor]]]:
    """The model's weights in the form of the given ones."""
    actor = [t.detach() for t in actor_layers(model)]
    if isinstance(model, SAC):
        heads = [model.actor.mu, model.actor.log_std]
        actor += [torch.cat([h.weight.detach() for h in heads]), torch.cat([h.bias.detach() for h in heads])]
    found = {"actor": [actor]}
    for name, critic in (("critics", model.critic), ("targets", model.critic_target)):
        found[name] = [[t.detach() for t in linear(net)] for net in critic.q_networks]
    if isinstance(model, SAC):
        found["temperature"] = [[model.log_ent_coef.detach()[0]]]
    return found


def kind_of(name: str) -> Any:
    """The class of an algorithm; TQC and CrossQ are of sb3-contrib."""
    if name in ("sac", "td3"):
        return {"sac": SAC, "td3": TD3}[name]
    import sb3_contrib

    return {"tqc": sb3_contrib.TQC, "crossq": sb3_contrib.CrossQ}[name]


def serve(name: str, threads: int) -> None:
    """Updates per second on so many threads, for each number of seconds on standard input."""
    torch.set_num_threads(threads)
    more = {"policy_kwargs": {"net_arch": [256, 256]}}  # CrossQ's default has wider critics
    model = kind_of(name)("MlpPolicy", Made(17, 6), batch_size=256, device="cpu", **more)
    model.set_logger(SimpleNamespace(record=lambda *args, **kwargs: None))
    batch = SimpleNamespace(
        observations=torch.randn(256, 17), actions=torch.rand(256, 6) * 2 - 1, next_observations=torch.randn(256, 17),
        rewards=torch.randn(256, 1), dones=torch.zeros(256, 1), discounts=None,
    )  # fmt: skip
    model.replay_buffer = SimpleNamespace(sample=lambda *args, **kwargs: batch)
    for line in itertools.chain(["0.5"], sys.stdin):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            model.train(1, 256)
            count += 1
        print(count / (time.perf_counter() - start), flush=True)


def main() -> None:
    """Make one update of each batch."""
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
        return
    given = torch.load(sys.argv[1], weights_only=True)
    first = given["batches"][0]
    size, (seen, action) = len(first["action"]), (first["observation"].shape[1], first["action"].shape[1])
    kind = {"sac": SAC, "td3": TD3}[given["name"]]
    more = {"ent_coef": "auto_1.0", "target_entropy": -float(action)} if kind is SAC else {}
    model = kind(
        "MlpPolicy", Made(seen, action), learning_rate=3e-4, batch_size=size, device="cpu",
        policy_kwargs={"net_arch": [256, 256], "n_critics": 2}, **more,
    )  # fmt: skip
    model.set_logger(SimpleNamespace(record=lambda *args, **kwargs: None))
    if kind is SAC:  # two things in which it differs on purpose or by rounding, so that all else can be compared
        model.actor.action_dist.epsilon = 0.0
        model.critic.optimizer.param_groups[0]["eps"] /= 2  # its loss is half of ours, and with it the gradients
    put(model, given["before"])
    rest = iter(given["batches"])

    def sample(*_: Any, **__: Any) -> Any:
        batch = next(rest)
        return SimpleNamespace(
            observations=batch["observation"], actions=batch["action"], next_observations=batch["next_observation"],
            rewards=batch["next_reward"], dones=batch["next_terminated"].float(), discounts=None,
        )  # fmt: skip

    model.replay_buffer = SimpleNamespace(sample=sample)
    generator = torch.Generator().manual_seed(given["seed"])
    if kind is SAC:
        # The trainer draws for the next action first, then for the actor's; this model asks in the other order.
        drawn: list[torch.Tensor] = []

        def noise(shape: Any, dtype: Any, device: Any) -> torch.Tensor:
            if not drawn:
                drawn[:] = [torch.randn(shape, generator=generator) for _ in range(2)]
            return drawn.pop()

        torch.distributions.normal._standard_normal = noise
    else:
        torch.manual_seed(given["seed"])  # `normal_` draws what the trainer's generator with this seed does
    for _ in given["batches"]:
        model.train(1, size)
    torch.save(taken(model), sys.argv[1])


if __name__ == "__main__":
    main()
