"""The command `python -m trainer.run`: arguments -> `Config` -> a run.

Every child process imports this file again, so it imports almost nothing by itself; slow modules are imported after the
arguments have been checked.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.commands.names import CONSOLE, is_console
from trainer.config.fields import ConfigError, nearest, shown
from trainer.config.parts import import_from_here
from trainer.config.run_files import RunFolder
from trainer.config.sections import CONFIG_DIR, config_keys, group_options
from trainer.host.saying import say
from trainer.reading import read_json

if TYPE_CHECKING:
    from trainer.config.composing import Loaded

HELP = """\
Trains an agent by asynchronous, vectorised Q-learning and leaves the run in a folder of its own.

usage: python -m trainer.run [KEY=VALUE ...] [FLAG ...]

examples:
  python -m trainer.run                                           CartPole to a solved policy
  python -m trainer.run preset=lunarlander seed=3 collector.num_workers=2
  python -m trainer.run env.id=SomeInstalled/Env-v0 'env.import_modules=[some_installed]'
  python -m trainer.run env.id=ALE/Breakout-v5 learner.device=cuda
  python -m trainer.run schedule=sync logger=wandb run_dir=runs/mine
  python -m trainer.run resume=runs/mine budget_frames=1_000_000  go on, where it was stopped or killed
  python -m trainer.run from=runs/mine seed=5                     a new run as that one, but with seed=5
  python -m trainer.run env.id=my_package.envs:MyEnv algorithm.network=my_package.networks:build
  python -m trainer.run -m preset=cartpole,acrobot seed=0,1,2     six runs, one after another

presets (preset=NAME; without one, the preset made for the env.id that you name, else generic):
{presets}

groups (GROUP=NAME):
{groups}

keys that are set most often:
  env.id                      the Gymnasium id, as LunarLander-v3
  env.import_modules          packages that register the id when imported, as [ale_py]
  env.kwargs.NAME             handed to the environment's constructor
  seed                        of the environments, the exploration, the network and the sampling
  budget_frames               environment frames that are collected in all
  run_dir                     the run's folder; default runs/<date>_<time>_<env>_<algorithm>_<seed>
  resume                      a run's folder to go on in; auto: run_dir, where that holds a run
  from                        a run's folder, or a YAML file with keys: begin as that one, with what is typed
  collector.num_workers       processes that play; default cores - 2, at least 1
  collector.envs_per_worker   environments that each of them steps together
  replay.capacity_frames      frames that the replay keeps
  learner.device              auto, cpu, cuda or cuda:N
  learner.batch_size          transitions of one update
  learner.learning_rate       step size of Adam
  learner.warmup_frames       frames before the first update
  schedule.frames_per_update  frames collected for each update; null: both sides run as fast as they can
  algorithm.n_step            steps of reward before the bootstrapped value
  evaluator.every_frames      frames between two greedy evaluations; 0: only at the end
  evaluator.stop_at_return    the run ends when an evaluation's mean reaches this
  logger.terminal             auto, live, plain or none
  telemetry.trace             true: RUN/trace.json for ui.perfetto.dev, what every process did when

flags:
  --help         this text
  --config-dir FOLDER  take presets and options from FOLDER/preset/NAME.yaml, FOLDER/env/NAME.yaml and so on, too
  --cfg job      print the configuration that the arguments make, with all keys of its algorithm, and stop
  --info         print how Hydra put it together, and stop
  -m             run every combination of values that are separated by commas, one after another
  --hydra-help   Hydra's own flags

All keys, with their meaning, stand in trainer/config/sections.py.
"""

# Flag -> words that may follow it.
FLAGS: dict[str, tuple[str, ...]] = {
    "--help": (),
    "-h": (),
    "--hydra-help": (),
    "--multirun": (),
    "-m": (),
    "--resolve": (),
    "--cfg": ("job", "hydra", "all"),
    "-c": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
    "-i": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says.

    Args:
        arguments: without the program's name; None: those of this process.

    Returns:
        The exit code: 0; 1 for a run that failed; 2 for an invalid configuration or environment; 128 plus the signal's
        number for a run that was stopped: 130 for Ctrl-C, 143 for SIGTERM, 138 for SIGUSR1.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        import_from_here()
        flags, overrides = split_flags(arguments)
        if {"-h", "--help"} & set(flags):
            say(help_text().rstrip("\n"))
            return 0
        if flags:
            return _hand_to_hydra(flags, overrides)
        from trainer.config.compose import load

        return _train(load(overrides), _command(arguments))[0]
    except ConfigError as error:
        return _refuse(error, 2)
    except KeyboardInterrupt:
        return 130


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into flags, with the words that belong to them, and the rest, `KEY=VALUE`.

    Raises:
        ConfigError: a flag is unknown, has a word that it does not take, or excludes another one.
    """
    flags: list[str] = []
    overrides: list[str] = []
    folders: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flag, equals, word = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(word or (rest.pop(0) if rest and "=" not in rest[0] else ""))
            continue
        if flag not in FLAGS:
            key = flag.lstrip("-")
            known = key in config_keys() or (CONFIG_DIR / key).is_dir()
            near = f"{key}={word or 'VALUE'}, without dashes" if known else nearest(flag, FLAGS)
            raise ConfigError(f"{shown(argument)} is no flag: " + (f"did you mean {near}?" if near else "see --help"))
        if not equals and FLAGS[flag] and rest and "=" not in rest[0] and not rest[0].startswith("-"):
            word = rest.pop(0)
        if (word and word not in FLAGS[flag]) or (flag in ("-c", "--cfg") and not word):
            raise ConfigError(f"{flag} takes {' or '.join(FLAGS[flag]) or 'no word'}, not {word or 'nothing'}")
        flags += [flag, word] if word else [flag]
    modes = [flag for flag in flags if flag in FLAGS and flag != "--resolve"]
    if len(modes) > 1:
        raise ConfigError(f"{' and '.join(modes)} cannot go together: use one at a time")
    if folders:
        from trainer.config.arguments import search_path

        overrides = [search_path(folders), *overrides]
    return flags, overrides


def help_text() -> str:
    """The text of `--help`: examples, presets, groups, and the most common keys."""
    from trainer.config.arguments import GROUPS
    from trainer.config.presets import preset_env_id

    presets = [f"  {name:<24}{preset_env_id(name) or 'any other env.id'}" for name in group_options("preset")]
    groups = [f"  {group:<12}{', '.join(group_options(group))}" for group in GROUPS if group != "preset"]
    return HELP.format(presets="\n".join(presets), groups="\n".join(groups))


def _hand_to_hydra(flags: list[str], overrides: list[str]) -> int:
    """Let Hydra print the configuration or run a sweep, after the arguments have been checked here."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from trainer.config.beginning import FROM, split_source
    from trainer.config.compose import check, choose_files, hydra_arguments, load
    from trainer.config.composing import composed
    from trainer.config.run_config import to_yaml
    from trainer.config.users_algorithms import paths_in, use_algorithms

    source, keys = split_source(overrides)
    use_algorithms(paths_in(overrides))
    checked = check(keys)
    if source and not {"-m", "--multirun"} & set(flags):
        print(to_yaml(load(overrides).config), end="")
        return 0
    unswept = [f"{FROM}{source}"] if source else []
    unswept += [override.input_line or "" for override in checked if override.key_or_group.startswith("hydra.search")]
    passed = hydra_arguments(checked)
    if {"-m", "--multirun"} & set(flags):
        if not any(override.key_or_group == "hydra/sweeper" for override in checked):  # another one chooses the values
            _check_sweep(overrides)
    elif not any(override.is_sweep_override() for override in checked):
        passed += choose_files(checked)[0]
        text = composed(passed, checked, "--resolve" in flags)  # Hydra would end with a traceback on an error
        if "job" in flags:
            print(text, end="")
            return 0

    here, scores = os.getcwd(), list[tuple[list[str], float]]()

    @hydra.main(config_path=str(CONFIG_DIR), config_name="train", version_base="1.3")
    def job(_: object) -> float:
        # Composed again by `load`, so that a run of a sweep has the same configuration as without -m.
        os.chdir(here)  # an environment of the run before may have changed the working folder
        chosen = [*unswept, *HydraConfig.get().overrides.task]
        say(f"\nrun {HydraConfig.get().job.num + 1} of the sweep: {' '.join(chosen)}")
        try:
            loaded = load(chosen)
        except ConfigError as error:  # of values that a sweeper chose; others were checked before the first run
            raise SystemExit(_refuse(error, 2)) from error
        code, score = _train(loaded, _command(chosen))
        gc.collect()  # its parts refer to one another: without this its replay stays mapped and uses the disk
        if code:
            raise SystemExit(code)
        scores.append((chosen, score))
        return score  # what a sweeper that searches makes the most or least of

    program = sys.argv
    sys.argv = [program[0], *flags, *passed]
    try:
        job()
    finally:
        sys.argv = program
        _print_scores(scores)
    return 0


def _print_scores(scores: list[tuple[list[str], float]]) -> None:
    """Print the score of each run of a sweep, beside the arguments in which the runs differ."""
    if len(scores) < 2:
        return
    common = set(scores[0][0]).intersection(*(chosen for chosen, _ in scores))
    say("\nscores of the runs (mean return of the best policy in the final evaluation):")
    for chosen, score in scores:
        say(f"  {score:10.4g}  {' '.join(word for word in chosen if word not in common)}")


def _check_sweep(overrides: list[str]) -> None:
    """Check the arguments and folders of all runs of a sweep before the first one begins.

    Raises:
        ConfigError: a run is not valid, or two runs have the same folder.
    """
    from trainer.config.compose import jobs, load

    folders: set[str] = set()
    for arguments in jobs(overrides):
        folder = load(arguments).config.run_dir
        if folder in folders:
            raise ConfigError(f"run_dir={folder} would hold several runs of the sweep: leave it out, or sweep it too")
        if folder is not None:
            folders.add(folder)


def _train(loaded: Loaded, command: list[str]) -> tuple[int, float]:
    """Train; the exit code, and the score: the mean return of the best policy in the final evaluation, or NaN."""
    for warning in loaded.warnings:
        say(f"warning: {warning}", sys.stderr)
    if loaded.finished:
        say(loaded.finished)
        return 0, _score(read_json(RunFolder(Path(str(loaded.config.run_dir))).summary))
    say(f"preset {loaded.config.preset} ({loaded.preset_reason})")

    from trainer.envs.spec import EnvError
    from trainer.host.errors import RunFailed
    from trainer.training.train import train

    try:
        summary = train(loaded.config, command=command)
    except (ConfigError, EnvError) as error:
        return _refuse(error, 2), math.nan
    except RunFailed as error:
        return _refuse(error, 1), math.nan
    return 128 + summary["stop_signal"] if summary["stop_signal"] else 0, _score(summary)


def _score(summary: Mapping[str, Any]) -> float:
    score = summary.get("eval_return_mean")
    return math.nan if score is None else float(score)


def _command(arguments: Sequence[str]) -> list[str]:
    """The command line, for the run's folder."""
    return [*([CONSOLE, "run"] if is_console() else [sys.argv[0]]), *arguments]


def _refuse(error: Exception, code: int) -> int:
    say(f"error: {error}", sys.stderr)
    return code
