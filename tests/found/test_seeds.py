"""Issue 18, 1.2: every process draws its own numbers from the global generators, and the same ones in the same run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.host import seeds
from trainer.run_folder import checkpoint

CHANCE = ["env.id=Found/Chance-v0", "env.import_modules=[hurting_processes]", "collector.num_workers=2"]
ROUNDS = ["schedule.frames_per_round=64", "evaluator.every_frames=200", "checkpoint.save_every_seconds=1000"]


def drawn(log: Path) -> dict[int, list[tuple[float, ...]]]:
    found = defaultdict(list)
    for line in log.read_text().splitlines():
        row = json.loads(line)
        found[row["pid"]].append(tuple(row["drawn"]))
    return found


def ended_with(folder: Path) -> tuple[torch.Tensor, bytes]:
    """The last weights, and all that was observed."""
    weights = checkpoint.load(folder / "last" / "policy.safetensors")["weights"]
    return weights, b"".join(path.read_bytes() for path in sorted((folder / "replay").rglob("observation.bin")))


def test_global_generators_give_the_same_run_in_sync_and_sequential(run):
    """`sync` twice and `sequential`: equal weights, equal replay, equal final evaluation."""
    ends, returns = [], []
    for number, schedule in enumerate(("sync", "sync", "sequential")):
        ended = run(*CHANCE, *ROUNDS, f"schedule={schedule}", "algorithm.noisy=true", name=f"run{number}")
        assert ended.code == 0, ended.said
        ends.append(ended_with(ended.run_dir))
        returns.append(ended.summary["eval_last_return_mean"])
    for weights, seen in ends[1:]:
        assert torch.equal(weights, ends[0][0]) and seen == ends[0][1]
    assert len(ends[0][1]) > 600 * 3 * 4
    assert len(set(returns)) == 1


@pytest.mark.parametrize("schedule", [pytest.param("sync", marks=pytest.mark.slow), "sequential"])
def test_exact_resume_goes_on_with_the_same_chance(run, schedule: str):
    """320 frames and then 320 more are 640 in one go, where rewards are drawn from the global generators."""
    words = ["env.id=Found/ChanceReward-v0", *CHANCE[1:], ROUNDS[0], f"schedule={schedule}"]
    whole = run(*words, "budget_frames=640", name="whole")
    first = run(*words, "budget_frames=320", name="parts")
    second = run(f"resume={first.run_dir}", "budget_frames=640", quick=False, name="parts")
    assert whole.code == first.code == second.code == 0, second.said
    assert "bit-identical" not in second.said
    assert torch.equal(ended_with(whole.run_dir)[0], ended_with(second.run_dir)[0])
    paid = [b"".join(path.read_bytes() for path in (r.run_dir / "replay").rglob("reward.bin")) for r in (whole, second)]
    assert paid[0] == paid[1] and len(set(np.frombuffer(paid[0], np.float32))) > 600


def test_no_two_processes_draw_the_same_numbers(run, tmp_path: Path):
    """Two workers and the evaluator; NumPy, Python and torch each."""
    log = tmp_path / "drawn.jsonl"
    rounds = ["schedule=sync", "schedule.frames_per_round=80"]  # in which both workers collect the same number
    ended = run(*CHANCE, *rounds, "evaluator.every_frames=200", f"env.kwargs.log={log}")
    assert ended.code == 0, ended.said
    found = {pid: rows for pid, rows in drawn(log).items() if len(rows) > 20}
    assert len(found) >= 3  # 2 workers, the evaluator; who describes the environment draws less
    for generator in range(3):
        numbers = [{row[generator] for row in rows} for rows in found.values()]
        shared = [len(a & b) for i, a in enumerate(numbers) for b in numbers[:i]]
        assert max(shared) <= 2  # by chance: 24 bits, some thousand draws


@pytest.mark.parametrize("seed", [0, 1, 4_293, 4_294, 5_000, 2**31, 10**18])
def test_environment_seeds_stay_below_two_to_the_32(seed: int):
    first, last = seeds.of_worker(seed, 0, 0), seeds.of_league(seed) + 299_999
    assert 0 <= first < last < 2**32
    if seed < 4_294:
        assert first == seed * 1_000_000  # as they always were: tables of results stay what they are
    assert seeds.of_worker(seed, 7, 3) == first + 30_007
    assert seeds.of_worker(seed, 7, 53) == first + 30_007  # after 50 starts they come again
    assert seeds.of_evaluation(seed) == first + 500_000
    assert seeds.of_final_evaluation(seed, 20) == first + 500_020


def test_large_run_seeds_have_environment_seeds_of_their_own():
    starts = sorted(seeds.first_of_run(seed) for seed in range(5_000, 5_200))
    assert np.diff(starts).min() > 0


def test_roles_numbers_starts_and_runs_draw_other_numbers():
    first = set()
    cases = [
        (seed, role, number, start, stage)
        for seed in (0, 1) for role in seeds.ROLES for number in (0, 1) for start in (0, 1) for stage in (0, 1)
    ]  # fmt: skip
    before = seeds.global_state()
    for case in cases:
        seeds.seed_globals(*case)
        first.add((np.random.randint(2**31), float(torch.rand(()))))
    seeds.set_global_state(before)
    assert len(first) == len(cases) == 2 * len(seeds.ROLES) * 8
