"""Updates of SAC and TD3 against Stable-Baselines3's: the same weights, batches and noise, then the largest difference.

    python -m benchmarks.agreement --sb3 PYTHON_WITH_SB3 [--updates 20]

Stable-Baselines3 makes the actor's step after the critics'; for the comparison SAC's two parts are two phases here. Two
more differences are taken out of its SAC: its density has `ln(1 - a^2 + 1e-6)`, where this trainer's is exact, and its
critics' loss is half of ours, which Adam's epsilon notices at tiny gradients. The sizes are HalfCheetah's, 256-256.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

SEEN, ACTION, BATCH, SEED = 17, 6, 256, 7


def batches(count: int) -> list[dict[Any, Any]]:
    """Random batches [BATCH], as the replay gives them."""
    import torch

    g = torch.Generator().manual_seed(1)

    def one() -> dict[Any, Any]:
        ended = torch.rand(BATCH, 1, generator=g) < 0.05
        return {
            "action": torch.rand(BATCH, ACTION, generator=g) * 2 - 1,
            "observation": torch.randn(BATCH, SEEN, generator=g),
            ("next", "observation"): torch.randn(BATCH, SEEN, generator=g),
            ("next", "reward"): torch.randn(BATCH, 1, generator=g),
            ("next", "terminated"): ended,
            ("next", "truncated"): torch.zeros_like(ended),
            ("next", "done"): ended,
        }

    return [one() for _ in range(count)]


def layers(updater: Any) -> dict[str, list[list[Any]]]:
    """Weight and bias of each linear layer, as torch has them: of the actor, each critic, and each target critic."""
    loss: Any = updater.algorithm.loss
    found = {}

    def ensemble(group: Any) -> list[list[Any]]:
        parts = [group["module", "layers", str(i)] for i in range(3)]
        return [[t for own in parts for t in (own["weight"][n].t().contiguous(), own["bias"][n, 0])] for n in range(2)]

    actor = loss.actor_network_params.data["module", "0", "module"]
    hidden = [actor["trunk", "layers", str(i)] for i in range(2)]
    found["actor"] = [[t for own in (*hidden, actor["head"]) for t in (own["weight"], own["bias"])]]
    found["critics"] = ensemble(loss.qvalue_network_params.data)
    found["targets"] = ensemble(loss.target_qvalue_network_params.data)
    return {name: [[t.clone() for t in one] for one in several] for name, several in found.items()}


def ours(name: str, updates: int) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]]:
    """The updater's batches, weights before and after the updates."""
    import torch

    from trainer.algorithms import build
    from trainer.algorithms.algorithm import Phase
    from trainer.config.algorithms import ALGORITHMS
    from trainer.config.sections import LearnerConfig
    from trainer.envs import BoxAction, EnvSpec, Leaf
    from trainer.learning.update import Updater

    torch.manual_seed(0)
    box = BoxAction((ACTION,), (-1.0,) * ACTION, (1.0,) * ACTION)
    spec = EnvSpec("made", (Leaf("observation", (SEEN,), "float32", "vector"),), box)
    section = ALGORITHMS[name].section(name=name, hidden_sizes=[256, 256], target_tau=0.005)
    config = LearnerConfig(learning_rate=3e-4, max_grad_norm=None, batch_size=BATCH)
    algorithm = build(section, config, spec)
    if name == "sac":
        algorithm = replace(algorithm, phases=tuple(Phase((part,)) for part in algorithm.phases[0].parts))
    updater, given = Updater(algorithm, config, torch.device("cpu"), SEED), batches(updates)
    before = layers(updater)
    updater.prepare(given[0])
    for batch in given:
        updater.update(batch)
    after: dict[str, Any] = layers(updater)
    if name == "sac":
        temperature: Any = algorithm.loss.temperature_params
        after["temperature"] = [[temperature.data["log_alpha"].clone()]]
    return updater, given, before, after


def main() -> None:
    """Print the largest difference of each group."""
    parser = argparse.ArgumentParser(description="SAC and TD3 against Stable-Baselines3 on the same weights.")
    parser.add_argument("--sb3", required=True, help="Python of an environment with Stable-Baselines3")
    parser.add_argument("--updates", type=int, default=20)
    args = parser.parse_args()
    import torch

    for name in ("sac", "td3"):
        _, given, before, after = ours(name, args.updates)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "given.pt"
            plain = [{"_".join(key) if isinstance(key, tuple) else key: t for key, t in b.items()} for b in given]
            torch.save({"name": name, "batches": plain, "before": before, "seed": SEED}, path)
            subprocess.run([args.sb3, "-m", "benchmarks.peer_agreement", str(path)], check=True)
            theirs = torch.load(path, weights_only=True)
        for part, several in after.items():
            moved = f", moved by {largest(several, before[part]):.1e}" if part in before else ""
            found = largest(several, theirs[part])
            print(f"{name}, {part}: the largest difference after {args.updates} updates is {found:.1e}{moved}")


def largest(some: list[list[Any]], others: list[list[Any]]) -> float:
    """The largest difference of two lists of lists of tensors."""
    pairs = [pair for one, other in zip(some, others, strict=True) for pair in zip(one, other, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    main()
