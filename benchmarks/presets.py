"""Returns of the presets: trains presets x seeds, one run after another, and prints the median over the seeds.

    python -m benchmarks.presets [--json FILE] [--presets cartpole acrobot mountaincar lunarlander] [--seeds 0 1 2 3 4]

The return is the mean of 100 greedy episodes of a run's best policy, which the evaluations during the run chose; these
episodes have other seeds. A preset that stops at a perfect return does so here too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Row, figure, parser, show

# Preset -> its target, from the README.
TARGETS = {"cartpole": 500.0, "acrobot": -80.0, "mountaincar": -105.0, "lunarlander": 200.0}


def train(preset: str, seed: int, folder: Path) -> dict[str, Any]:
    """Make one run by the command that a user types; its summary."""
    run_dir = folder / f"{preset}_{seed}"
    command = [sys.executable, "-m", "trainer.run", f"preset={preset}", f"seed={seed}", f"run_dir={run_dir}"]
    subprocess.run([*command, "logger.terminal=none"], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    print(
        f"{preset} seed {seed}: {summary['eval_return_mean']:.1f} +- {summary['eval_return_std']:.1f} (last policy "
        f"{summary['eval_last_return_mean']:.1f}), {summary['frames']} frames, {summary['wall_s']:.1f} s, "
        f"{summary['reason']}",
        flush=True,
    )
    return summary


def row(preset: str, summaries: list[dict[str, Any]]) -> Row:
    """The median return of a preset's runs, with frames and seconds."""

    def median(key: str) -> float:
        return statistics.median(summary[key] for summary in summaries)

    returns = ", ".join(figure(summary["eval_return_mean"]) for summary in summaries)
    last = figure(median("eval_last_return_mean"))
    detail = (
        f"{returns}; last policies {last}; {median('frames'):,.0f} frames, {median('wall_s'):.0f} s, "
        f"{median('frames_per_s'):,.0f} frames/s"
    )
    return Row(f"{preset}, median return", median("eval_return_mean"), "", TARGETS.get(preset), detail=detail)


def main() -> None:
    arguments = parser("Returns that the presets reach")
    arguments.add_argument("--presets", nargs="+", default=list(TARGETS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    options = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for preset in options.presets:
            rows.append(row(preset, [train(preset, seed, Path(folder)) for seed in options.seeds]))
    show("Presets", rows, options.json, f"seeds {options.seeds}; frames and seconds are medians too")


if __name__ == "__main__":
    main()
