"""SAC's update as a short script writes it: modules, one loss after the other, an Adam for each, in eager mode.

`benchmarks.continuous` compares with it. It does what a single-file implementation does: two critics as two modules,
a policy of torch.distributions, and target networks that follow parameter by parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import mse_loss


class Actor(nn.Module):
    """Mean and deviation of a Gaussian through tanh."""

    def __init__(self, seen: int, action: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(seen, width), nn.Linear(width, width)
        self.mean, self.log_std = nn.Linear(width, action), nn.Linear(width, action)

    def draw(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] in [-1, 1] and their log-density [B, 1]."""
        hidden = torch.relu(self.second(torch.relu(self.first(seen))))
        normal = Normal(self.mean(hidden), self.log_std(hidden).clamp(-20, 2).exp())
        x = normal.rsample()
        action = torch.tanh(x)
        density = normal.log_prob(x) - torch.log(1 - action.pow(2) + 1e-6)
        return action, density.sum(1, keepdim=True)


def critic(seen: int, action: int, width: int) -> nn.Sequential:
    """The value of (s, a)."""
    return nn.Sequential(
        nn.Linear(seen + action, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


class PlainSAC:
    """Networks and optimisers; `update` makes one update of a batch as the trainer's replay gives it."""

    def __init__(self, seen: int, action: int, width: int = 256, rate: float = 3e-4, tau: float = 0.005) -> None:
        self.tau, self.entropy = tau, -float(action)
        self.actor = Actor(seen, action, width)
        self.critics, self.targets = ([critic(seen, action, width) for _ in range(2)] for _ in range(2))
        for network, target in zip(self.critics, self.targets, strict=True):
            target.load_state_dict(network.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        of_critics = [parameter for network in self.critics for parameter in network.parameters()]
        self.of_critics = torch.optim.Adam(of_critics, rate)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), rate)
        self.of_alpha = torch.optim.Adam([self.log_alpha], rate)

    def update(self, batch: dict[Any, Tensor]) -> None:
        """Critics, actor, temperature, target networks."""
        seen, following = batch["observation"], batch["next", "observation"]
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            action, density = self.actor.draw(following)
            both = torch.cat([following, action], 1)
            value = torch.min(*[target(both) for target in self.targets]) - alpha * density
            wanted = batch["next", "reward"] + 0.99 * (1 - batch["next", "terminated"].float()) * value
        both = torch.cat([seen, batch["action"]], 1)
        loss = sum(mse_loss(network(both), wanted) for network in self.critics)
        step(self.of_critics, loss)
        action, density = self.actor.draw(seen)
        both = torch.cat([seen, action], 1)
        step(self.of_actor, (alpha * density - torch.min(*[network(both) for network in self.critics])).mean())
        with torch.no_grad():
            _, density = self.actor.draw(seen)
        step(self.of_alpha, (-self.log_alpha.exp() * (density + self.entropy)).mean())
        for network, target in zip(self.critics, self.targets, strict=True):
            for weight, follower in zip(network.parameters(), target.parameters(), strict=True):
                follower.data.copy_(self.tau * weight.data + (1 - self.tau) * follower.data)


def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    """One step along a loss's gradient."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
