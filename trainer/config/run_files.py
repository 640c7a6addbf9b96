"""The names of a run's files, each said once; imports nothing, as command lines are checked by them."""

from __future__ import annotations

from pathlib import Path


class RunFolder:
    """Where a run keeps what, below its folder `path`; nothing needs to be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # what the run is
        self.command = path / "command.txt"  # the command lines that began it and went on with it
        self.versions = path / "versions.json"  # what it was made with
        self.lock = path / "lock"  # held by the process that trains, and names it
        self.metrics = path / "metrics.jsonl"  # its rows, a JSON object a line
        self.table = path / "metrics.csv"  # its rows as a table
        self.log = path / "log.txt"  # its events
        self.summary = path / "summary.json"  # how it ended
        self.curve = path / "curve.png"  # the picture of its returns
        self.trace = path / "trace.json"  # what every process did when
        self.league = path / "league.json"  # ratings of the league at its end
        self.league_picture = path / "league.png"  # the same, to be looked at
        self.checkpoints = path / "checkpoints"  # what it goes on from
        self.last_policy = path / "checkpoints" / "last_policy.pt"  # the policy of its newest checkpoint
        self.best_policy = path / "best" / "policy.pt"  # the policy that its evaluations chose
        self.pool = path / "pool"  # past selves, in self-play
        self.agents = path / "agents"  # a folder for each agent, where there are several
        self.output = path / "output"  # what each child process printed
        self.scratch = path / "scratch"  # the replay while the run lasts, if `replay.scratch_dir` is not set
        self.damaged_summary = path / "damaged_summary.json"  # what had been its summary
