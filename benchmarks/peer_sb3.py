"""One job of `works.py` by Stable-Baselines3's DQN or SAC; prints the JSON line of the other drivers.

    PYTHON_WITH_SB3 -m benchmarks.peer_sb3 --env CartPole-v1 --n-envs 8

It runs in a virtual environment that has Stable-Baselines3, so it imports nothing of the trainer. SB3 counts
`train_freq` in calls of the vector environment. So a round has the least common multiple of the number of environments
and the frames per update, and as many gradient steps as are due for it (8 environments, one update per 10 frames: 5
calls, then 4 steps). This gives exactly one update for so many frames, whatever the number of environments.

`--solve ppo` and `--solve zoo` instead train CartPole by rl-zoo3's settings of PPO and DQN, and print after how
many seconds, without those of evaluations, 20 greedy episodes first had a mean return of 475. They are played every
2,500 frames.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

BAR, EVALUATE_EVERY, EPISODES = 475.0, 2_500, 20


def make_env(env_id: str, seed: int) -> Any:
    """The same environment as in the other drivers: Atari with frame skip 4, 84 x 84 grey, 4 frames stacked."""
    import gymnasium as gym
    from stable_baselines3.common.monitor import Monitor

    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        env: Any = gym.make(env_id, frameskip=1)
        env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
        env = gym.wrappers.FrameStackObservation(env, 4)
    else:
        env = gym.make(env_id)
    env.action_space.seed(seed)
    return Monitor(env)


def make_model(args: argparse.Namespace) -> Any:
    """The model for the job, or for `--solve`."""
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.vec_env import DummyVecEnv

    from benchmarks.works import EPSILON_END, EPSILON_SHARE, EPSILON_START, GAMMA, TAU, WORKS

    made = DummyVecEnv([lambda i=i: make_env(args.env, args.seed + i) for i in range(args.n_envs)])
    if args.solve == "ppo":  # hyperparams/ppo.yml of rl-zoo3
        return PPO(
            "MlpPolicy", made, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
            learning_rate=lambda left: left * 1e-3, clip_range=lambda left: left * 0.2, seed=args.seed, device="cpu",
        )  # fmt: skip
    if args.solve == "zoo":  # hyperparams/dqn.yml
        return DQN(
            "MlpPolicy", made, learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1_000,
            gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128, exploration_fraction=0.16,
            exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, seed=args.seed, device="cpu",
        )  # fmt: skip
    work, image = WORKS[args.env], args.env.startswith("ALE/")
    round_frames = math.lcm(work.train_every, args.n_envs)
    if work.algorithm == "sac":
        return SAC(
            "MlpPolicy", made, learning_rate=work.lr, buffer_size=work.buffer, learning_starts=work.learning_starts,
            batch_size=work.batch, tau=TAU, gamma=GAMMA, train_freq=round_frames // args.n_envs,
            gradient_steps=round_frames // work.train_every, policy_kwargs={"net_arch": list(work.hidden)},
            seed=args.seed, device="cpu",
        )  # fmt: skip
    return DQN(
        "CnnPolicy" if image else "MlpPolicy", made, learning_rate=work.lr, buffer_size=work.buffer,
        learning_starts=work.learning_starts, batch_size=work.batch, gamma=GAMMA,
        train_freq=round_frames // args.n_envs, gradient_steps=round_frames // work.train_every,
        target_update_interval=work.target_every, exploration_fraction=EPSILON_SHARE,
        exploration_initial_eps=EPSILON_START, exploration_final_eps=EPSILON_END,
        # The Nature CNN's last hidden layer is part of SB3's CNN.
        policy_kwargs=None if image else {"net_arch": list(work.hidden)}, seed=args.seed, device="cpu",
    )  # fmt: skip


def greedy_return(model: Any, env_id: str, seed: int) -> float:
    """Mean return of greedy episodes, played in lockstep."""
    import gymnasium as gym
    import numpy as np

    played = [gym.make(env_id) for _ in range(EPISODES)]
    seen = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(played)])
    total, alive = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while alive.any():
        actions = model.predict(seen, deterministic=True)[0]
        for i in np.flatnonzero(alive):
            seen[i], reward, terminated, truncated, _ = played[i].step(int(actions[i]))
            total[i] += reward
            alive[i] = not (terminated or truncated)
    return float(total.mean())


def solve(model: Any, args: argparse.Namespace, steps: int) -> float | None:
    """Seconds until the bar was reached, without those of evaluations; None if it was not reached."""
    start, paused, due, solved = time.perf_counter(), 0.0, EVALUATE_EVERY, None

    def look(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal paused, due, solved
        if model.num_timesteps < due:
            return True
        due, now = model.num_timesteps + EVALUATE_EVERY, time.perf_counter()
        if greedy_return(model, args.env, 1_000 + args.seed) >= BAR:
            solved = now - start - paused
        paused += time.perf_counter() - now
        return solved is None

    model.learn(steps, callback=look)
    return solved


def main() -> None:
    parser = argparse.ArgumentParser(description="One job by Stable-Baselines3, as a JSON line.")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, required=True, help="frames")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--n-envs", type=int, default=1)
    parser.add_argument("--solve", choices=("", "ppo", "zoo"), default="")
    args = parser.parse_args()
    import stable_baselines3
    import torch

    from benchmarks.machine import Meter, peer_line

    torch.set_num_threads(args.threads)
    model = make_model(args)
    meter, more = Meter(), {}
    if args.solve:
        more["solve_greedy_s"] = solve(model, args, args.steps)
    else:
        model.learn(args.steps)
    meter.stop()
    print(
        peer_line(
            meter, model.num_timesteps, model._n_updates, meter.wall_s, peer="sb3",
            version=stable_baselines3.__version__, env=args.env, seed=args.seed, threads=args.threads,
            n_envs=args.n_envs, **more,
        ),
        flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
