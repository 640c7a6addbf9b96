"""Names of the files in a run folder. It imports nothing slow, as the check of a command line needs it."""

from __future__ import annotations

from pathlib import Path


class RunFolder:
    """Paths of the files of a run in its folder `path`; none of them needs to exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # the resolved configuration
        self.command = path / "command.txt"  # the command lines that started and resumed it
        self.versions = path / "versions.json"  # versions of packages, commit and machine
        self.lock = path / "lock"  # locked by the process that trains; has its process id
        self.metrics = path / "metrics.jsonl"  # its rows, one JSON object on each line
        self.table = path / "metrics.csv"  # its rows as a table
        self.log = path / "log.txt"  # its events
        self.summary = path / "summary.json"  # how it ended
        self.curve = path / "curve.png"  # picture of its returns and speeds
        self.trace = path / "trace.json"  # what every process did when
        self.league = path / "league.json"  # ratings of the last league
        self.league_picture = path / "league.png"  # picture of these ratings
        self.checkpoints = path / "checkpoints"  # checkpoints to resume it from
        self.progress = path / "checkpoints" / "run.pt"  # of its newest checkpoint, what is of no single agent
        self.last_policy = path / "last" / "policy.safetensors"  # the policy of its newest checkpoint
        self.older_last_policy = path / "checkpoints" / "last_policy.pt"  # the two of a run of an older trainer
        self.policies = path / "checkpoints" / "policies"  # those of `checkpoint.policy_every_frames`
        self.best_policy = path / "best" / "policy.safetensors"  # the best policy by its evaluations
        self.older_best_policy = path / "best" / "policy.pt"  # the same of a run of an older trainer
        self.videos = path / "videos"  # of evaluations, if there are any
        self.pool = path / "pool"  # snapshots of the policy, in self-play
        self.agents = path / "agents"  # one folder for each agent, if there are several
        self.output = path / "output"  # what each child process printed
        self.scratch = path / "scratch"  # the replay during the run, unless `replay.scratch_dir` is set
        self.damaged_summary = path / "damaged_summary.json"  # a summary that could not be read

    def policy_after(self, frames: int) -> Path:
        """The policy that was kept after so many frames."""
        return self.policies / f"frames_{frames:012d}.safetensors"


def run_of(policy: Path) -> RunFolder:
    """The folder of the run that a policy or snapshot belongs to; where there is none, the folder above its own."""
    above = policy.resolve().parents
    found = next((folder for folder in above if RunFolder(folder).config.is_file()), above[min(1, len(above) - 1)])
    return RunFolder(found)
