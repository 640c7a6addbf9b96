"""The search: its space, who works on which trial, and real searches that are killed and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from trainer.commands import tune
from trainer.commands.run import main as run
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.tuning import search as searches
from trainer.tuning.space import FOLDER, arguments_of, defaults, read_space
from trainer.tuning.trial import steps

ONE_KEY = "learner.learning_rate=tag(log,interval(1e-4,1e-2))"


@pytest.mark.parametrize("preset", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_the_first_trial_of_every_space_is_the_preset_itself(preset):
    space, fixed = read_space([f"preset={preset}"])
    first = defaults(space, load(fixed).config)
    assert fixed == [f"preset={preset}"] and first.keys() == space.keys()
    assert load([*fixed, *arguments_of(first)]).config == load(fixed).config


def test_the_command_line_fixes_keys_and_adds_others(tmp_path):
    (tmp_path / "space.yaml").write_text("algorithm.n_step: range(1, 6, 2)\nalgorithm.gamma: choice(0.9, 0.99)\n")
    arguments = ["preset=cartpole", "algorithm.gamma=0.95", "algorithm.hidden_sizes=[16],[32,32]", ONE_KEY]
    space, fixed = read_space(arguments, tmp_path / "space.yaml")
    assert fixed == ["preset=cartpole", "algorithm.gamma=0.95"]
    assert space["algorithm.n_step"].to_internal_repr(5) == 5.0
    assert (space["algorithm.n_step"].low, space["algorithm.n_step"].high, space["algorithm.n_step"].step) == (1, 5, 2)
    assert space["algorithm.hidden_sizes"].choices == ("[16]", "[32,32]")
    rate = space["learner.learning_rate"]
    assert (rate.low, rate.high, rate.log) == (1e-4, 1e-2, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["preset=pong"], "preset=pong has no search space: "),
        (["learner.learning_rate=interval(1e-4,5)"], "learner.learning_rate=5"),
        (["learner.learning_rat=1,2"], "there is no key learner.learning_rat; the nearest is learner.learning_rate"),
        (["learner.learning_rate=tag(log,interval(0,1))"], "learner.learning_rate=tag(log,interval(0,1)): "),
        (["run_dir=here"], "run_dir= is refused"),
        (["--trials", "0"], "--trials 0 must be at least 1"),
        (["--space", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_a_search_that_cannot_be_is_refused_in_one_sentence(tmp_path, capsys, arguments, sentence):
    assert tune.main(["--folder", str(tmp_path / "search"), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and sentence in said and said.count("\n") == 1
    assert not (tmp_path / "search").exists()


def opened(folder, *arguments, trials=3):
    space, fixed = read_space(["preset=cartpole", *(arguments or (ONE_KEY, *FIXED))])
    return searches.open_search(folder, space, fixed, trials, "median", 0, defaults(space, load(fixed).config))


FIXED = (
    "learner.batch_size=128", "algorithm.n_step=3", "algorithm.gamma=0.99", "algorithm.target_tau=0.01",
    "algorithm.hidden_sizes=[120,84]", "schedule.frames_per_update=2", "collector.epsilon_decay_frames=6000",
)  # fmt: skip


def test_a_trial_whose_process_died_goes_on_in_its_folder_with_its_values(tmp_path):
    search = opened(tmp_path)
    with searches.next_trial(search) as (trial, _):
        assert trial.params == {"learner.learning_rate": 2e-3}  # the preset's
        with searches.next_trial(opened(tmp_path)) as (other, _):
            assert other.number == 1 and searches.running(search) == 2
            values = other.params
        search.study.tell(trial, 100.0)
    search = opened(tmp_path)
    with searches.next_trial(search) as (again, _):
        assert again.number == 2 and again.params == values
        assert searches.folder_of(search, again) == tmp_path / "trial_0001"
        search.study.tell(again, 50.0)
    with searches.next_trial(search) as (last, _):
        assert last.params != values  # the seed's draws are not made again
        search.study.tell(last, state=TrialState.PRUNED)
    with searches.next_trial(search) as found:
        assert found is None
    assert [trial.number for trial in search.study.trials if searches.counts(trial)] == [0, 2, 3]
    searches.write_best(search, ["preset=cartpole"])
    found = json.loads((tmp_path / "best.json").read_text())
    assert found == {
        "score": 100.0, "run": "trial_0000", "arguments": ["preset=cartpole", "learner.learning_rate=0.002"]
    }  # fmt: skip


def test_a_folder_with_another_search_is_refused(tmp_path):
    opened(tmp_path)
    with pytest.raises(ConfigError, match="holds a search with other space"):
        opened(tmp_path, "learner.learning_rate=1e-3,2e-3", *FIXED)
    with pytest.raises(ConfigError, match="holds a search with other arguments"):
        opened(tmp_path, ONE_KEY, *FIXED, "budget_frames=9000")
    opened(tmp_path, ONE_KEY, *FIXED, "learner.device=cpu")


def test_a_step_is_the_number_of_an_evaluation():
    rows = [{"frames": frames, "eval_return_mean": frames / 2} for frames in (1_512, 498, 1_004, 2_600)]
    assert steps(rows, 500) == {1: 249.0, 2: 502.0, 3: 756.0, 5: 1_300.0}
    assert steps([{"frames": 100, "eval_return_mean": None}, {"frames": 100, "eval_return_mean": 1.0}], 0) == {100: 1.0}


def test_hydras_own_sweepers_get_the_score_of_each_run(tmp_path, monkeypatch):
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "searching.py").write_text(SWEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    from hydra_plugins import searching

    Plugins.instance().register(searching.Searching)
    ConfigStore.instance().store(
        group="hydra/sweeper", name="searching", node={"_target_": "hydra_plugins.searching.Searching"}
    )
    short = ["schedule=sequential", "budget_frames=1100", "evaluator.final_episodes=2"]
    assert run(["-m", "hydra/sweeper=searching", "run_dir='run_${seed}'", "logger.terminal=none", *short]) == 0
    summaries = [json.loads((tmp_path / f"run_{seed}" / "summary.json").read_text()) for seed in (3, 4)]
    assert searching.SCORES == [summary["eval_return_mean"] for summary in summaries]


# As Optuna's, Ax's and Nevergrad's sweepers do: it chooses the values, launches the runs and asks for floats.
SWEEPER = """
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

SCORES = []

class Searching(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        for number, seed in enumerate((3, 4)):
            (found,) = self.launcher.launch([[*arguments, f"seed={seed}"]], initial_job_idx=number)
            SCORES.append(float(found.return_value))
"""

COMMAND = [
    sys.executable, "-m", "trainer.tune", "preset=cartpole", "schedule=sequential", "budget_frames=6000",
    "evaluator.every_frames=1000", "evaluator.final_episodes=20", "learner.num_threads=1", "--seed", "1",
]  # fmt: skip


@pytest.mark.slow
def test_a_search_of_20_runs_is_killed_goes_on_and_ends_better_than_the_default(tmp_path):
    command = [*COMMAND, "--trials", "20", "--folder", str(tmp_path / "search")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment)
    metrics = tmp_path / "search" / "trial_0002" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    search = searches.open_search(
        tmp_path / "search", *read_space(COMMAND[3:-2]), 20, "median", 1, {}
    )  # fmt: skip
    trials = [trial for trial in search.study.trials if searches.counts(trial)]
    assert len(trials) == 20 and not any("error" in trial.user_attrs for trial in trials)
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    starts = (tmp_path / "search" / "trial_0002" / "command.txt").read_text().splitlines()
    assert len(starts) == 2
    (default,) = [trial for trial in trials if searches.folder_of(search, trial).name == "trial_0000"]
    best = searches.best(search)
    assert best.value > default.value
    assert json.loads((tmp_path / "search" / "best.json").read_text())["score"] == best.value
    assert done.stdout.splitlines()[-2].startswith(f"best: {best.value:g}, ")


def wait_for(happened, process, timeout=120):
    end = time.monotonic() + timeout
    while not happened():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
