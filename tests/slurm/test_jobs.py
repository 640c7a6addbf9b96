"""Jobs on a real SLURM: what each agent gets, and what becomes of a job that is signalled, cancelled or pre-empted.

Most of them run stub_trainer.py in the trainer's place, which starts at once: these test the scripts. Those named
trainer_* run the trainer itself. Those that were chosen run side by side, on four nodes, for most of their time is
waiting: SLURM lets a requeued job wait for some 15 s.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.slurm.job_scenarios import (
    MARK,
    SCENARIOS,
    Place,
    carried_out,
    rows,
)

pytestmark = pytest.mark.slow  # minutes, in which SLURM lets everybody wait


@pytest.fixture(scope="module")
def futures(
    request: pytest.FixtureRequest, slurm: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Place]]]:
    """The scenarios of all tests that were chosen, side by side; those that need cores first."""
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = {params["place"] for params in asked if "place" in params}
    chosen = sorted(
        (found for found in SCENARIOS if found.__name__ in names), key=lambda s: "trainer" not in s.__name__
    )
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {s.__name__: pool.submit(carried_out, s, slurm, tmp_path_factory.mktemp(s.__name__)) for s in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, futures: dict[str, Future[Place]]) -> Place:
    return futures[request.param].result()


def scenario(*names: str) -> pytest.MarkDecorator:
    """The scenarios that a test looks at."""
    return pytest.mark.parametrize("place", names, indirect=True)


# --- what each agent gets, and whom a failure harms ------------------------------------------------------------------


@scenario("one_fails")
def test_agents_share_nothing(place: Place) -> None:
    given = {rank: place.given(rank) for rank in (0, 1, 3, 4, 5)}
    job = place.jobs[0]
    for rank, found in given.items():
        assert found["CUDA_VISIBLE_DEVICES"] == str(rank)  # of a node of its own, so the first GPU is 0
        assert found["SLURM_CPUS_PER_TASK"] == "8"
        assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("1", "1")
        assert found["seed"] == str(40 + rank)
        assert found["run_dir"] == str(place.run / f"agent_{rank}")
        assert found["replay.scratch_dir"] == found["TMPDIR"]
        assert found["TMPDIR"].endswith(f"/{job}/agent_{rank}")
        assert (found["env.id"], found["resume"], found["logger.wandb_group"]) == ("CartPole-v1", "auto", "run")
        assert f"agent {rank} on " in place.log(rank)


@scenario("one_fails", "trainer_one_fails")
def test_one_that_fails_leaves_five_alone(place: Place) -> None:
    assert [place.summary(rank).get("status") for rank in (0, 1, 3, 4, 5)] == ["finished"] * 5
    assert re.search(r"error: run_dir=.+/agent_2 cannot be written", place.log(2))
    job = place.seen["job"]
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "2:0", "0")
    assert place.left() == {"shared": [], "scratch": []}


@scenario("one_fails")
def test_scratch_of_killed_jobs_is_swept_and_that_of_living_ones_is_not(place: Place) -> None:
    assert place.seen["scratch"] == sorted(
        [*(name + end for name in (place.jobs[0], "888_1") for end in ("", ".lock")), "lock"]
    )
    assert re.findall(r"removing \S+/(\d+) of a job that was killed", place.out()) == ["666", "777"]


@scenario("sweep")
def test_sweep_runs_each_combination(place: Place) -> None:
    assert {job["JobState"] for job in place.seen["jobs"]} == {"COMPLETED"}
    given = [place.given(element) for element in range(4)]
    assert [(found["learner.learning_rate"], found["seed"]) for found in given] == [
        ("0.001", "3"), ("0.001", "4"), ("0.0005", "3"), ("0.0005", "4"),
    ]  # fmt: skip
    assert [found["run_dir"] for found in given] == [str(place.run / f"agent_{element}") for element in range(4)]


# --- signals ---------------------------------------------------------------------------------------------------------


@scenario("time_is_up", "pre_empted", "time_limit", "node_fails")
def test_job_is_requeued_once_and_goes_on(place: Place) -> None:
    job, name = place.seen["job"], place.environment[MARK].partition("_")[2]
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert place.out().count("got USR1") == (name in ("time_is_up", "time_limit"))
    assert place.out().count("requeued at") == (name != "node_fails")
    for rank in range(1, 6):
        *saved, last = place.checkpoints(rank)
        assert len(saved) == 1 or (name == "node_fails" and not saved)  # such a node need not wait for anybody to save
        for first in saved:
            assert 0 < first < last
            assert f"resumed at {first} frames" in place.log(rank)
        assert place.summary(rank) == {"status": "finished", "frames": last}
    assert place.left() == {"shared": [], "scratch": []}


@scenario("node_fails")
def test_scratch_stays_while_agents_save_whose_node_is_set_down(place: Place) -> None:
    assert "the scratch folder is gone" not in "".join(place.log(rank) for rank in range(6))
    assert place.left() == {"shared": [], "scratch": []}


@scenario("time_is_up")
def test_finished_agent_ends_at_once_after_a_requeue(place: Place) -> None:
    assert place.log(0).count("holds a run that is finished") == 2
    assert place.checkpoints(0) == []


@scenario("element_requeues_alone")
def test_element_requeues_itself_alone(place: Place) -> None:
    assert place.seen["states"] == ["RUNNING"] * 3
    assert [job["Restarts"] for job in place.seen["jobs"]] == ["0", "0", "1"]
    assert {job["JobState"] for job in place.seen["jobs"]} == {"COMPLETED"}
    assert [len(place.checkpoints(element)) for element in range(3)] == [1, 1, 2]
    assert [place.given(element)["seed"] for element in range(3)] == ["7", "8", "9"]
    assert "resumed at" in place.log(2)


@scenario("cancelled_and_submitted_again")
def test_cancelled_job_saves_leaves_nothing_and_goes_on_when_submitted_again(place: Place) -> None:
    assert place.seen["job"]["JobState"] == "CANCELLED"
    assert place.seen["job"]["Restarts"] == "0"
    assert place.seen["processes"] > 12  # six agents and their workers
    assert place.seen["left"] == {"shared": [], "scratch": []}
    assert place.seen["again"]["JobState"] == "COMPLETED"
    for rank in range(6):
        first, last = place.checkpoints(rank)
        assert place.seen["first"][rank] == [first]
        assert f"resumed at {first} frames" in place.log(rank)


@scenario("cancelled_while_saving")
def test_job_that_is_cancelled_while_it_makes_room_is_not_requeued(place: Place) -> None:
    assert (place.seen["job"]["JobState"], place.seen["job"]["Restarts"]) == ("CANCELLED", "0")
    assert len(place.checkpoints(0)) == len(place.checkpoints(1)) == 1
    assert "requeued" not in place.out()


@scenario("no_progress")
def test_restarts_without_progress_come_to_an_end(place: Place) -> None:
    job = place.seen["job"]
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "1:0", "1")
    assert "not requeued, for 1 restarts in a row found no newer checkpoint" in place.out()


@scenario("no_progress_at_start")
def test_restart_by_slurm_without_progress_comes_to_an_end(place: Place) -> None:
    job = place.seen["job"]
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "1:0", "1")
    assert "error: 1 restarts in a row found no newer checkpoint" in place.out()


@scenario("requeue_refused")
def test_refused_requeue_says_what_to_do(place: Place) -> None:
    job = place.seen["job"]
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", f"{128 + signal.SIGUSR1}:0")
    assert f"submit it again with run_dir={place.run}, and it goes on from there" in place.out()


# --- the trainer itself ----------------------------------------------------------------------------------------------


@scenario("trainer_array", "trainer_six", "trainer_cluster")
def test_trainer_resumes_after_a_requeue(place: Place) -> None:
    struck = place.seen["first"]
    jobs = place.seen.get("jobs") or [place.seen["job"]]
    assert {(job["JobState"], job["ExitCode"]) for job in jobs} == {("COMPLETED", "0:0")}
    assert [job["Restarts"] for job in jobs] == (["0", "1"] if len(jobs) == 2 else ["1"])
    for rank, saved in struck.items():
        assert 0 < saved[-1] < place.summary(rank)["frames"]
        assert place.summary(rank)["status"] == "finished"
        after = rows(place.run / f"agent_{rank}")[place.seen["rows"][rank] :]
        assert min(row["frames"] for row in after) >= saved[-1]  # on from the checkpoint, not from the start
    assert place.seen["left"] == {"shared": [], "scratch": []}


@scenario("trainer_array")
def test_requeued_agent_stays_one_run_in_wandb(place: Place) -> None:
    folders = [sorted((place.run / f"agent_{rank}" / "wandb").glob("offline-run-*")) for rank in (0, 1)]
    assert [len(parts) for parts in folders] == [1, 2]  # one for each start
    ids = [{part.name.rpartition("-")[2] for part in parts} for parts in folders]
    assert ids == [{(place.run / f"agent_{rank}" / "wandb_id.txt").read_text().strip()} for rank in (0, 1)]
    assert ids[0] != ids[1]


@scenario("trainer_cancelled")
def test_cancelled_trainers_leave_nothing(place: Place) -> None:
    assert place.seen["job"]["JobState"] == "CANCELLED"
    assert place.seen["processes"] > 6 * 4  # each with its fork server, a worker and an evaluator
    assert place.seen["left"] == {"shared": [], "scratch": []}
    for rank in range(6):
        assert place.checkpoints(rank)
        assert (place.summary(rank)["status"], place.summary(rank)["reason"]) == ("stopped", "signal SIGTERM")
