"""The schedules of rounds: nothing that a run decides depends on how fast a process was."""

from __future__ import annotations

import pytest

from trainer.run_folder import checkpoint

# The default preset, but for a goal that is met soon and a replay ratio that leaves little to calculate.
CARTPOLE = [
    "schedule.frames_per_update=20", "collector.num_workers=2", "evaluator.every_frames=1500",
    "evaluator.stop_at_return=100", "evaluator.final_episodes=2", "logger.terminal=plain", "learner.device=cpu",
]  # fmt: skip


def test_sync_is_deterministic_and_ends_as_sequential_does(run):
    """An evaluation of 20 episodes lasts longer than a round: whoever did not wait for it stopped by the clock."""
    seen = []
    for number, schedule in enumerate(("sync", "sync", "sequential")):
        ended = run(f"schedule={schedule}", *CARTPOLE, quick=False, name=f"run_{number}")
        assert ended.code == 0, ended.said
        weights = checkpoint.load(ended.run_dir / "last" / "policy.safetensors")["weights"]
        best = checkpoint.load(ended.run_dir / "best" / "policy.safetensors")
        row = {key: ended.summary[key] for key in ("frames", "updates", "solved_frames", "reason", "eval_return_mean")}
        asked = [own["frames"] for own in ended.rows if "eval_return_mean" in own]
        seen.append((row, asked, weights.numpy().tobytes(), best["frames"], best["weights"].numpy().tobytes()))
    assert seen[0] == seen[1] == seen[2]
    row, asked, *_ = seen[0]
    assert row["reason"] == "evaluator.stop_at_return=100 was reached"
    assert row["solved_frames"] == row["frames"] == asked[-1]  # it ended with the round that was evaluated


@pytest.mark.slow
def test_deterministic_operations_where_a_process_learns(run):
    """In `sequential` the environment runs in the process that learns, and in `shared_gradient` too."""
    for schedule in ("sequential", "shared_gradient"):
        ended = run(
            "env.import_modules=[hurting_evals]", "env.id=Hurting/Deterministic-v0", f"schedule={schedule}",
            "learner.deterministic=true", "faults.max_failures=0", name=schedule,
        )  # fmt: skip
        assert ended.code == 0 and ended.summary["updates"] > 0, ended.said
