"""The console script `trainer COMMAND ...`: every command stands in `COMMANDS`.

Every child process of a run imports this file again, so it imports almost nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from trainer.config.fields import hint, shown
from trainer.host.leaving import leave_soon


@dataclass(frozen=True)
class Command:
    """A command of the console script.

    Args:
        main: import path of its `main(arguments) -> exit code`.
        does: what it does, in a few words.
    """

    main: str
    does: str


# By name; each is also `python -m trainer.NAME`, but for `completion`.
COMMANDS = {
    "run": Command("trainer.commands.run:main", "train: KEY=VALUE ..., see trainer run --help"),
    "eval": Command("trainer.commands.eval:main", "greedy episodes of a run or a policy file"),
    "play": Command("trainer.commands.play:main", "a video of them, a window, or a game against you"),
    "plot": Command("trainer.commands.plot:main", "the learning curve of runs"),
    "report": Command("trainer.commands.report:main", "runs compared on one HTML page"),
    "tune": Command("trainer.commands.tune:main", "search for a better configuration"),
    "league": Command("trainer.commands.league:main", "ratings of the players of a game"),
    "timeline": Command("trainer.commands.timeline:main", "what every process of a run did when"),
    "push": Command("trainer.commands.push:main", "share a run's best policy in the Hugging Face Hub"),
    "export_dataset": Command("trainer.commands.export_dataset:main", "a run's replay as a Minari dataset"),
    "completion": Command("trainer.commands.completion:main", "a completion script for bash, zsh or fish"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names.

    Args:
        arguments: without the program's name; None: those of this process.

    Returns:
        The command's exit code; 2 without a command, or for one that there is not.
    """
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if name in COMMANDS:
        code: int = resolve_name(COMMANDS[name].main)(rest)
        return code
    if name in ("--version", "-V"):
        print(_version())
        return 0
    if name in ("", "-h", "--help"):
        print(help_text(), end="", file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    near = hint(name, COMMANDS)
    print(f"error: {shown(name)} is no command{near}; trainer --help lists all", file=sys.stderr)
    return 2


def script() -> int:
    """The entry point of the console script."""
    code = leave_soon(main())
    gc.freeze()  # Python need not take all that was imported apart: 0.2 s until the process has ended, not 1.5 s
    return code


def help_text() -> str:
    """The text of `trainer --help`."""
    lines = [f"  {name:<16}{command.does}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: trainer COMMAND ...", "", *lines, "", "trainer COMMAND --help says what it takes; --version", ""]
    )


def _version() -> str:
    from trainer.run_folder.folder import package_versions

    found = package_versions()
    return ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
