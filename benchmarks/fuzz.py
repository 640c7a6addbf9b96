"""Try nonsense for every key: on the loader in this process, and on the real command.

    python -m benchmarks.fuzz [--loader 1000] [--main 100] [--seed 0] [--json FILE]

Each run is a small one of one of the kinds in `RUNS`, and sets one to three keys to values that make no sense: huge,
tiny, negative, not numbers, other types, texts that no file or terminal can hold, interpolations. It counts tracebacks,
hangs, error messages that are not one sentence, and nonsense that was accepted. Two tables here, which the validation
does not use, say what is nonsense: a number outside its outer bounds must be refused, one outside its inner bounds must
be refused or warned of.

A run of the command may take long, if it warned of that and ends when it is asked to.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row, parser, show

LOADER_S, MAIN_S, END_S = 10.0, 150.0, 60.0  # on a machine that others use, a start alone takes half a minute
SMALL = [
    "budget_frames=300", "algorithm.hidden_sizes=[16]", "collector.num_workers=1", "collector.envs_per_worker=4",
    "replay.capacity_frames=1000", "learner.device=cpu", "learner.batch_size=16", "learner.warmup_frames=50",
    "schedule.frames_per_update=4", "evaluator.every_frames=0", "evaluator.episodes=2", "evaluator.final_episodes=2",
    "evaluator.num_envs=2", "logger.terminal=plain",
]  # fmt: skip
_COUNTING = [
    "preset=generic", "env.id=Counting", "env.backend=counting", "collector.epsilon_decay_frames=100",
    "algorithm.target_update_every_updates=10", *SMALL,
]  # fmt: skip
# Small runs of each kind, which the nonsense then changes.
RUNS = {
    "one agent": _COUNTING,
    "rounds": [*_COUNTING, "schedule=sync"],
    "shared gradients": [*_COUNTING, "schedule=shared_gradient", "schedule.num_agents=2"],
    "continuous": ["preset=pendulum", *SMALL],
    "several agents": ["preset=treasurehunt", "collector.epsilon_decay_frames=100", *SMALL],
    "self-play": ["preset=tictactoe_selfplay", "collector.epsilon_decay_frames=100", *SMALL],
}

# Keys -> (never below, odd below, odd above, never above); whole numbers and others alike.
_COUNT = (1, 1, 1e7, 1e13)
_SECONDS = (1e-6, 1e-6, 1e10, 1e13)
_SHARE = (0, 0, 1, 1)
_WEIGHT = (0, 0, 1e9, 1e12)
NUMBERS: dict[str, tuple[float, float, float, float]] = {
    "seed": (0, 0, 2**64, 2**64), "budget_frames": (2, 20, 1e11, 1e13), "env.screen_size": (1, 8, 2_000, 1e5),
    "env.frame_stack": (1, 1, 100, 1e4), "env.max_episode_steps": _COUNT, "env.first_instance": (0, 0, 1e12, 1e15),
    "algorithm.gamma": (1e-6, 0.05, 1, 1),
    "algorithm.n_step": (1, 1, 300, 1e5), "algorithm.noisy_sigma": (1e-12, 1e-3, 100, 1e4),
    "algorithm.num_atoms": (2, 3, 2_000, 1e5), "algorithm.v_min": (-1e15, -1e7, 1e7, 1e15),
    "algorithm.v_max": (-1e15, -1e7, 1e7, 1e15), "algorithm.num_quantiles": (1, 1, 2_000, 1e5),
    "algorithm.num_fractions": (1, 1, 1_000, 1e5), "algorithm.num_acting_fractions": (1, 1, 2_000, 1e5),
    "algorithm.fraction_cosines": (1, 1, 2_000, 1e5), "algorithm.risk_level": (1e-9, 0.005, 1, 1),
    "algorithm.munchausen_alpha": _SHARE, "algorithm.munchausen_temperature": (1e-9, 1e-4, 10, 1e4),
    "algorithm.munchausen_clip": (-1e12, -1e3, 0, 0), "algorithm.target_update_every_updates": (1, 1, 1e3, 1e13),
    "algorithm.target_tau": (1e-12, 1e-5, 1, 1), "algorithm.hidden_sizes": (1, 1, 2e4, 1e6),
    "algorithm.num_critics": (1, 1, 500, 1e5),
    "algorithm.actor_learning_rate": (1e-15, 1e-7, 1, 100),
    "algorithm.temperature": (1e-12, 1e-6, 1e5, 1e9),
    "algorithm.temperature_learning_rate": (1e-15, 1e-7, 1, 100),
    "algorithm.target_entropy": (-1e9, -1e6, 1e6, 1e9),
    "algorithm.critics_in_target": (1, 1, 500, 1e5),
    "algorithm.critic_dropout": (0, 0, 0.9, 1),
    "algorithm.actor_every_updates": (1, 1, 1e4, 1e9),
    "algorithm.critic_quantiles": (1, 1, 2_000, 1e5),
    "algorithm.dropped_quantiles": (0, 0, 2_000, 1e5),
    "algorithm.renorm_momentum": (1e-9, 1e-5, 1, 1),
    "algorithm.renorm_warmup_updates": (0, 0, 1e9, 1e12),
    "algorithm.policy_delay": (1, 1, 1e4, 1e9),
    "algorithm.target_noise": (0, 0, 5, 1e3),
    "algorithm.target_noise_clip": (0, 0, 5, 1e3),
    "algorithm.action_noise": (0, 0, 5, 1e3),
    "algorithm.action_noise_theta": _SHARE,
    "collector.random_frames": (0, 0, 1e10, 1e13),
    "cluster.nodes": (1, 1, 1_000, 1e4), "cluster.workers_per_node": (1, 1, 200, 1e5),
    "collector.num_workers": (1, 1, 200, 1e5), "collector.envs_per_worker": (1, 1, 5e3, 1e6),
    "collector.epsilon_start": _SHARE, "collector.epsilon_end": _SHARE,
    "collector.epsilon_decay_frames": (0, 0, 1e4, 1e13), "collector.apex_epsilon": _SHARE,
    "collector.apex_noise": _SHARE, "collector.apex_alpha": (0, 0, 100, 1e6),
    "replay.capacity_frames": (1, 1, 1e11, 1e11),
    "replay.priority_alpha": (0, 0, 3, 1e3), "replay.priority_beta": _SHARE, "replay.priority_beta_end": _SHARE,
    "replay.priority_eps": (1e-20, 1e-12, 100, 1e6), "learner.batch_size": (1, 1, 1e6, 1e8),
    "learner.learning_rate": (1e-15, 1e-7, 1, 100), "learner.learning_rate_end": (0, 0, 1, 100),
    "algorithm.normalize_clip": (0.01, 1, 1_000, 1e8),
    "learner.learning_rate_warmup_updates": (0, 0, 1e7, 1e13), "evaluator.video_every": (0, 0, 1e9, 1e13),
    "checkpoint.policy_every_frames": (0, 0, 1e13, 1e13),
    "learner.adam_eps": (1e-30, 1e-16, 0.1, 100), "learner.max_grad_norm": (1e-12, 1e-5, 1e15, 1e20),
    "learner.warmup_frames": (1, 1, 1e9, 1e13), "learner.prefetch_batches": (1, 1, 1_000, 1e5),
    "learner.publish_every_updates": (1, 1, 1e3, 1e13), "learner.num_threads": (1, 1, 500, 5_000),
    "schedule.frames_per_update": (1e-6, 1e-3, 300, 1e13), "schedule.episodes_per_update": (1e-6, 1e-3, 300, 1e13),
    "schedule.tolerance_frames": (1, 1, 1e6, 1e13), "schedule.frames_per_round": (1, 1, 1e10, 1e13),
    "schedule.episodes_per_round": (1, 1, 1e7, 1e13), "schedule.updates_per_round": (1, 1, 1e9, 1e13),
    "schedule.num_agents": (1, 1, 2_000, 1e5), "evaluator.every_frames": (0, 0, 1e13, 1e13),
    "evaluator.episodes": (1, 1, 1e5, 1e8), "evaluator.final_episodes": (1, 1, 1e5, 1e8),
    "evaluator.num_envs": (1, 1, 1e4, 1e6), "evaluator.nice": (0, 0, 19, 19),
    "evaluator.league_games": (0, 0, 1e4, 1e7),
    "evaluator.stop_at_return": (-1e15, -1e15, 1e15, 1e15), "evaluator.final_max_seconds": _SECONDS,
    "evaluator.max_episode_steps": (1, 1, 1e9, 1e13), "agents.hang_seconds": _SECONDS,
    **{
        f"opponents.{kind}{end}": _WEIGHT
        for kind in ("random", "scripted", "latest", "snapshots", "checkpoints")
        for end in ("", "_end")
    },
    "opponents.snapshot_every_frames": (1, 1, 1e13, 1e13), "opponents.pool_size": (1, 1, 1e4, 1e6),
    "opponents.active": (2, 2, 1e4, 1e6), "opponents.last_k": (1, 1, 1e6, 1e8), "opponents.epsilon": (0, 0, 0.9, 1),
    "checkpoint.save_every_seconds": _SECONDS, "checkpoint.keep_last": (1, 1, 1e6, 1e9),
    "faults.max_failures": (0, 0, 1e12, 1e15), "faults.period_seconds": _SECONDS, "faults.hang_seconds": _SECONDS,
    "faults.worker_memory_mb": (10, 10, 1e9, 1e12), "logger.every_seconds": _SECONDS,
    "telemetry.trace_events": (1, 1, 1e7, 1e9),
}  # fmt: skip
ONLY_WITH = {"schedule.frames_per_round", "schedule.episodes_per_round", "schedule.updates_per_round"}  # rounds
MAY_BE_NULL = {
    "env.max_episode_steps", "env.instance_key", "algorithm.target_tau", "cluster.workers_per_node",
    "collector.num_workers", "replay.scratch_dir",
    "replay.start_from",
    "learner.learning_rate_end", "learner.max_grad_norm", "schedule.frames_per_update", "schedule.episodes_per_update",
    "schedule.tolerance_frames", "schedule.frames_per_round", "schedule.episodes_per_round",
    "schedule.updates_per_round", "evaluator.stop_at_return", "evaluator.final_max_seconds",
    "evaluator.max_episode_steps", "faults.worker_memory_mb", "logger.wandb_entity", "logger.info_keys",
    "logger.wandb_group", "run_dir", "resume", "opponents.start_from",
    "algorithm.v_min", "algorithm.v_max",
    "algorithm.actor_learning_rate", "algorithm.temperature_learning_rate", "algorithm.target_entropy",
    "algorithm.critics_in_target", "algorithm.action_noise_theta",
    *(f"opponents.{kind}_end" for kind in ("random", "scripted", "latest", "snapshots", "checkpoints")),
}  # fmt: skip
NUMERIC = [
    "-1", "0", "-0.0", "0.5", "-1e30", "1e30", "1e-30", "1e-9", "1e9", "1e13", "1e308", "5e-324", "nan", "inf", "-inf",
    "100000", "1000000000", "2147483648", "9223372036854775808", "1" + 25 * "0", 400 * "9", 5_000 * "9", "1e400",
]  # fmt: skip
OTHERS = [
    "null", "true", "abc", "''", '""', "[]", "[1]", "[[1]]", "{}", "{a: 1}", "[", "{", "(2)", "a=b", "${nope}",
    "${seed}", "${oc.env:NOPE}", "${", "${.}", "läuft", "ключ", "😀", "１２", "0x10", "1_0", "a\nb", "a\tb", "\x1b[31m",
    "a,b", "*", "~", "--help", "-", "\\", "'", '"', "../" * 2_000, "a" * 300, "a" * 20_000, "[" * 500, "\udcff",
    "a\x00b", "choice(1,2)", "range(0,1e18)", "interval(0,1)", "glob(*)", "[-1]", "[1e400]", "[null]",
    "[99999999999999999999]",
]  # fmt: skip


@dataclass
class Found:
    """The result of one run: its arguments, the name of a fault or an empty text, and what the run printed."""

    arguments: list[str]
    fault: str
    said: str
    refused: bool


def kinds() -> dict[str, str]:
    """Every key of the configuration with its type, as `int | None`."""
    from trainer.config.sections import config_keys

    return {key: str(item.type) for key, item in config_keys().items()}


def draw(rng: random.Random, types: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Draw one to three keys with a value each; of a number's values, half are numbers.

    Returns:
        The arguments of a small run with these values, and the values by their keys.
    """
    run = rng.choice(sorted(RUNS))
    chosen = rng.sample(sorted(types), rng.choice((1, 1, 1, 2, 3)))
    values = {}
    for key in chosen:
        number = any(word in types[key] for word in ("int", "float"))
        value = rng.choice(NUMERIC if rng.random() < (0.7 if number else 0.2) else OTHERS)
        if key in NUMBERS and rng.random() < 0.4:  # near the edges, where more is accepted
            edge = rng.choice(NUMBERS[key]) * rng.choice((0.1, 0.5, 1, 2, 10))
            value = str(round(edge)) if "int" in types[key] else f"{edge:g}"
            value = f"[{value}]" if key == "algorithm.hidden_sizes" else value
        if key == "algorithm.hidden_sizes" and not value.startswith("[") and rng.random() < 0.5:
            value = f"[{value},{rng.choice(NUMERIC)}]"
        if types[key].startswith("dict") and rng.random() < 0.7:
            inner = "a.learner.batch_size" if key == "agents.overrides" else "a"
            key = f"{key}.{inner}"
        values[key] = value
    values = _of_an_owner(rng, values, "box" if run == "continuous" else "numbered")
    words = [word for word in RUNS[run] if word.partition("=")[0] not in values]
    return [*words, *(f"{key}={text}" for key, text in values.items())], values


def _of_an_owner(rng: random.Random, values: dict[str, str], actions: str) -> dict[str, str]:
    """The values, and an algorithm that has all of its keys: else it is for that alone that they are refused."""
    from trainer.config.algorithms import ALGORITHMS, keys_of

    keys = {key.removeprefix("algorithm.") for key in values if key.startswith("algorithm.")}
    owners = [
        name for name, entry in ALGORITHMS.items() if keys <= set(keys_of(entry.section)) and entry.actions == actions
    ]
    return {"algorithm": rng.choice(owners), **values} if keys and owners and "name" not in keys else values


def as_number(text: str) -> float | None:
    """The number that Hydra reads from a text; None if it reads something else."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except (ValueError, OverflowError):
        return None


def nonsense(key: str, text: str, types: dict[str, str]) -> str:
    """`never`: must be refused; `odd`: must be refused or warned of; empty: may be accepted."""
    kind = types.get(key, "")
    if "${nope}" in text or "${oc.env:NOPE}" in text:
        return "never"
    if text == "null":
        return "" if key in MAY_BE_NULL or not kind else "never"
    if kind.startswith(("str", "list[str]")):
        return "never" if any(bad in text for bad in ("\n", "\x00", "\udcff", "\x1b")) or len(text) > 5_000 else ""
    numbers = [as_number(part) for part in text.strip("[]").split(",")] if kind.startswith("list[int]") else []
    if not kind.startswith(("int", "float")) and not (numbers and text.startswith("[")):
        return "never" if kind == "bool" and as_number(text) not in (None, 0, 1) else ""
    found = ""
    for number in numbers or [as_number(text)]:
        if number is None:
            return "" if "${" in text or text in ("[]", "1_0", "[null]") else "never"
        never_below, odd_below, odd_above, never_above = NUMBERS[key]
        if math.isnan(number) or not never_below <= number <= never_above:
            return "never"
        if not odd_below <= number <= odd_above and key not in ONLY_WITH:
            found = "odd"
    return found


def judge(values: dict[str, str], types: dict[str, str], refused: bool, said: str) -> str:
    """The fault of a run that ended by itself; empty if there is none."""
    if "Traceback" in said:
        return "traceback"
    if refused:
        sentence = "\n".join(line for line in said.strip().splitlines() if not line.startswith("warning: "))
        plain = sentence and "\n" not in sentence and not sentence.endswith(":") and len(sentence) < 2_000
        return "" if plain else "no sentence"
    grades = {key: nonsense(key, text, types) for key, text in values.items()}
    for key, grade in grades.items():
        if grade == "never" or (grade == "odd" and key not in said):
            return f"accepted {key}"
    return ""


def on_loader(count: int, seed: int) -> list[Found]:
    """Load so many nonsensical configurations in this process."""
    from trainer.config.compose import load
    from trainer.config.fields import ConfigError
    from trainer.config.run_config import to_yaml

    rng, types, found = random.Random(seed), kinds(), []
    for _ in range(count):
        arguments, values = draw(rng, types)
        start = time.monotonic()
        refused, fault = False, ""
        try:
            loaded = load(arguments, cores=4)
            said = "\n".join(loaded.warnings)
            to_yaml(loaded.config).encode()
        except ConfigError as error:
            refused, said = True, str(error)
        except BaseException as error:  # a KeyboardInterrupt, too, would be a finding
            said, fault = f"{type(error).__name__}: {error}", "traceback"
        fault = fault or judge(values, types, refused, said)
        if time.monotonic() - start > LOADER_S:
            fault = "hang"
        found.append(Found(arguments, fault, said, refused))
    return found


def on_main(count: int, seed: int, folder: Path) -> list[Found]:
    """Make so many runs by the real command, each in a new folder below `folder`, from which it is also started."""
    found: list[Found] = []
    rng, types = random.Random(seed), kinds()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), "WANDB_MODE": "offline"}
    while len(found) < count:
        arguments, values = draw(rng, types)
        if any("\x00" in text for text in values.values()):  # no argument of a program can hold it
            continue
        if len(found) % 5 and _is_refused(arguments):  # of five runs, four are of what the loader lets through
            continue
        place = folder / str(len(found))
        place.mkdir()
        command = [sys.executable, "-m", "trainer.run", *arguments]
        with open(place / "said", "wb") as said:
            process = subprocess.Popen(
                command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
            hung = _wait(process)
        text = (place / "said").read_text(errors="replace")
        fault = "hang" if hung else judge(values, types, process.returncode == 2, text)
        if not fault and process.returncode not in (0, 1, 2, 130):
            fault = f"exit code {process.returncode}"
        if not fault and process.returncode == 130 and "warning" not in text:
            fault = "slow without a warning"
        found.append(Found(arguments, fault, text, process.returncode == 2))
        print(f"{len(found)}/{count} code {process.returncode} {fault}", file=sys.stderr, flush=True)
    return found


def _is_refused(arguments: list[str]) -> bool:
    from trainer.config.compose import load
    from trainer.config.fields import ConfigError

    try:
        return bool(load(arguments, cores=4).finished)
    except ConfigError:
        return True


def _wait(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the end, and after a while ask for it; returns whether the process had to be killed."""
    for seconds, ask in ((MAIN_S, signal.SIGINT), (END_S, signal.SIGKILL)):
        try:
            process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            process.send_signal(ask)
    process.wait()
    return True


def main() -> None:
    arguments = parser("nonsense for every key")
    arguments.add_argument("--loader", type=int, default=1_000, help="configurations that are loaded (1000)")
    arguments.add_argument("--main", type=int, default=100, help="runs of the real main (100)")
    arguments.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    chosen = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        for name, found in (
            ("loader", on_loader(chosen.loader, chosen.seed)),
            ("main", on_main(chosen.main, chosen.seed + 1, Path(folder))),
        ):
            faults = [one for one in found if one.fault]
            for one in faults:
                words = [text[:200] for text in one.arguments if text not in SMALL]
                print(f"{one.fault}: {words}\n    {one.said[-600:]!r}")
            if not found:
                continue
            refused = sum(one.refused for one in found)
            for kind in ("traceback", "hang", "accepted", ""):
                count = sum(one.fault.startswith(kind) for one in faults) if kind else len(faults)
                detail = f"{len(found)} runs, {refused} refused"
                rows.append(Row(f"{name}: {kind or 'all faults'}", count, "", 0, at_most=True, detail=detail))
    show("fuzz", rows, chosen.json)


if __name__ == "__main__":
    main()
