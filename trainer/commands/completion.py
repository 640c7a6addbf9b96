"""Print a script that completes the words of `trainer`: `trainer completion bash`.

    trainer completion bash > ~/.local/share/bash-completion/completions/trainer
    trainer completion zsh > ~/.zfunc/_trainer                    # a folder of $fpath
    trainer completion fish > ~/.config/fish/completions/trainer.fish

The script has all words in it, so that a completion starts no Python. Make it again after an update.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pkgutil import resolve_name

from trainer.commands.console import COMMANDS
from trainer.commands.names import program
from trainer.commands.run import FLAGS
from trainer.config.arguments import GROUPS
from trainer.config.sections import config_keys, group_options

Words = dict[str, list[str]]  # of each command; one that ends in = takes a value


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script for the shell that the argument names.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code 0.
    """
    parser = argparse.ArgumentParser(
        prog=program("completion"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=SHELLS)
    options = parser.parse_args(arguments)
    print(SHELLS[options.shell](words()), end="")
    return 0


def words() -> Words:
    """The words of every command: keys and groups of a run, options of the others."""
    return {name: of_run() if name == "run" else of_help(name) for name in COMMANDS}


def of_run() -> list[str]:
    """`KEY=` for each key, `KEY=VALUE` where few values are possible, `GROUP=NAME`, and flags."""
    found = []
    for key, item in config_keys().items():
        choices = item.metadata.get("choices", ("true", "false") if item.type == "bool" else ())
        found += [f"{key}={choice}" for choice in choices] or [f"{key}="]
    found += [f"{group}={option}" for group in GROUPS for option in group_options(group)]
    return [*found, *FLAGS]


def of_help(command: str) -> list[str]:
    """The options that a command's help names, and the shells of this one."""
    if command == "completion":
        return list(SHELLS)
    said = io.StringIO()
    with redirect_stdout(said):
        try:
            resolve_name(COMMANDS[command].main)(["--help"])
        except SystemExit:  # argparse ends with its help
            pass
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", said.getvalue())))


def bash(of: Words) -> str:
    """A script for bash, which takes the text before and after = for two words."""
    cases = "\n".join(f"    {name}) words='{' '.join(known)}' ;;" for name, known in of.items())
    return f"""# Completion of trainer for bash, made by: trainer completion bash
_trainer() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" words word candidate
  word="${{line##* }}"
  if (( COMP_CWORD == 1 )); then words='{" ".join(of)}'; else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  COMPREPLY=()
  for candidate in $(compgen -W "$words" -- "$word"); do
    [[ $candidate == *= ]] || candidate+=' '
    [[ $word == *=* ]] && candidate="${{candidate#"${{word%"${{word##*=}}"}}"}}"
    COMPREPLY+=("$candidate")
  done
}}
complete -o default -o nospace -F _trainer trainer
"""


def zsh(of: Words) -> str:
    """A script for zsh."""
    cases = "\n".join(
        f"    {name}) compadd -S '' -- {' '.join(word for word in known if word.endswith('='))}; "
        f"compadd -- {' '.join(word for word in known if not word.endswith('='))} ;;"
        for name, known in of.items()
    )
    return f"""#compdef trainer
# Completion of trainer for zsh, made by: trainer completion zsh
_trainer() {{
  if (( CURRENT == 2 )); then compadd -- {" ".join(of)}; return; fi
  case $words[2] in
{cases}
  esac
  _files
}}
compdef _trainer trainer
"""


def fish(of: Words) -> str:
    """A script for fish."""
    lines = [f"complete -c trainer -n '__fish_use_subcommand' -f -a '{name}' -d '{COMMANDS[name].does}'" for name in of]
    lines += [
        f"complete -c trainer -n '__fish_seen_subcommand_from {name}' -a '{' '.join(known)}'"
        for name, known in of.items()
    ]
    return "\n".join(["# Completion of trainer for fish, made by: trainer completion fish", *lines, ""])


SHELLS: dict[str, Callable[[Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
