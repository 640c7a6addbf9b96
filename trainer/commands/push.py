"""Share a run's best policy: `python -m trainer.push RUN owner/name`.

The repository gets the policy file, a card with command and returns, the learning curve and a video. Whoever has the
trainer loads it by `hub:owner/name`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.api.sources import FILE_IN_HUB
from trainer.commands import play
from trainer.commands.finished import from_here
from trainer.commands.names import program
from trainer.config.fields import ConfigError
from trainer.config.parts import import_from_here
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder
from trainer.envs import EnvError
from trainer.reading import ReadError, read_json
from trainer.run_folder import policy_file
from trainer.run_folder.checkpoint import best_policy
from trainer.sharing import card, hub

VIDEO = "replay.mp4"  # the name that the hub knows


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the repository, and print where it is.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the run could not be read or the repository not be written; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("push"), description=__doc__)
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument("name", metavar="owner/name", help="of the repository; it is made if it is not there")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--no-video", action="store_true", help="leave the video out")
    options = parser.parse_args(arguments)
    import_from_here()
    try:
        with tempfile.TemporaryDirectory() as folder:
            collect(options.run, options.name, Path(folder), not options.no_video)
            print(hub.push(Path(folder), options.name, f"Add {options.run.name}", options.private))
    except (ConfigError, ReadError, EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def collect(run_dir: Path, name: str, folder: Path, video: bool) -> None:
    """Put the files of a repository into a folder.

    Args:
        run_dir: the run folder.
        name: `owner/name` of the repository.
        folder: an empty one.
        video: whether to play an episode for a video; a warning on stderr if that fails.

    Raises:
        ConfigError, ReadError: there is no run, or it has no policy that can be shared.
    """
    run = RunFolder(run_dir)
    if not run.config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    policy = best_policy(run)
    if not policy.exists() or policy.suffix != policy_file.SUFFIX:
        raise ConfigError(
            f"{run_dir} has no policy file {run.best_policy.name}: train with this version of the trainer"
        )
    shutil.copyfile(policy, folder / FILE_IN_HUB)
    if run.curve.exists():
        shutil.copyfile(run.curve, folder / run.curve.name)
    shown = VIDEO if video and _film(run_dir, folder / VIDEO) else ""
    commands = card.for_others(policy_file.commands_of(run.command))
    summary, versions = (read_json(path) if path.exists() else {} for path in (run.summary, run.versions))
    text = card.card(name, from_yaml(run.config), summary, commands, versions, shown)
    (folder / "README.md").write_text(text)


def _film(run_dir: Path, path: Path) -> bool:
    """Write a video of an episode, by `trainer.play`; whether there is one."""
    with contextlib.redirect_stdout(io.StringIO()):
        done = play.main([str(run_dir), "--out", str(path)]) == 0
    if not done:
        print("warning: there is no video, as the environment could not be shown", file=sys.stderr)
    return done and path.exists()
