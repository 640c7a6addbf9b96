"""The CartPole job of `works.py` by TorchRL's `DQNTrainer`; prints the JSON line of the other drivers.

    python -m benchmarks.peer_torchrl --n-envs 8

It is built as in TorchRL's documentation: `Collector`, `LazyTensorStorage`, `DQNLoss`, `HardUpdate`, logging off. It
differs from the job in three ways. It collects 1,000 frames and then makes 100 updates (as in TorchRL's example, and
faster than 10 frames and 1 update). The frames before learning starts are random, and only the last 1,000 of them
reach its replay. It learns after each batch, including the first one, so learning starts one batch later than the job
says, to make the same number of updates.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

ENV_ID = "CartPole-v1"
FRAMES_PER_BATCH = 1_000  # about: a multiple of the environments that gives a whole number of updates


def make_env(n_envs: int, seed: int) -> Any:
    """One environment, or several in one call, the fastest way that TorchRL 0.14 has in one process."""
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode
    from torchrl.envs import GymWrapper

    if n_envs == 1:
        env = GymWrapper(gym.make(ENV_ID), categorical_action_encoding=True)
    else:
        vector = gym.make_vec(
            ENV_ID, n_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}
        )
        env = GymWrapper(vector, categorical_action_encoding=True)
    env.set_seed(seed)
    return env


def make_trainer(args: argparse.Namespace, steps: int) -> Any:
    """TorchRL's DQNTrainer, set up for the job."""
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate
    from torchrl.trainers.algorithms import DQNTrainer

    from benchmarks.works import EPSILON_END, EPSILON_SHARE, EPSILON_START, GAMMA, WORKS

    work = WORKS[ENV_ID]
    unit = math.lcm(args.n_envs, work.train_every)
    frames = max(1, round(FRAMES_PER_BATCH / unit)) * unit
    env = make_env(args.n_envs, args.seed)
    network = MLP(in_features=4, out_features=2, num_cells=list(work.hidden), activation_class=torch.nn.ReLU)
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec_unbatched, action_space="categorical")
    greedy = EGreedyModule(
        env.action_spec_unbatched, EPSILON_START, EPSILON_END, annealing_num_steps=round(EPSILON_SHARE * steps)
    )
    collector = Collector(
        env, TensorDictSequential(actor, greedy), frames_per_batch=frames, total_frames=steps,
        init_random_frames=work.learning_starts + frames,
    )  # fmt: skip
    loss = DQNLoss(actor, delay_value=True, loss_function="smooth_l1", action_space="categorical")
    loss.make_value_estimator(gamma=GAMMA)
    return DQNTrainer(
        collector=collector,
        total_frames=steps,
        frame_skip=1,
        optim_steps_per_batch=frames // work.train_every,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=work.lr),
        clip_norm=10.0,
        progress_bar=False,
        replay_buffer=TensorDictReplayBuffer(storage=LazyTensorStorage(work.buffer), batch_size=work.batch),
        target_net_updater=HardUpdate(loss, value_network_update_interval=work.target_every // work.train_every),
        greedy_module=greedy,
        enable_logging=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The CartPole job by TorchRL's DQNTrainer, as a JSON line.")
    parser.add_argument("--steps", type=int, default=0, help="frames; 0: the job's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--n-envs", type=int, default=1)
    args = parser.parse_args()
    import torch
    import torchrl

    from benchmarks.machine import Meter, peer_line
    from benchmarks.works import WORKS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    trainer = make_trainer(args, args.steps or WORKS[ENV_ID].steps)
    meter = Meter()
    trainer.train()
    meter.stop()
    print(
        peer_line(
            meter, trainer.collected_frames, trainer._optim_count, meter.wall_s, peer="torchrl DQNTrainer",
            version=torchrl.__version__, env=ENV_ID, seed=args.seed, threads=args.threads, n_envs=args.n_envs,
        ),
        flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
