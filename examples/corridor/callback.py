"""A callback: ends the run once rows show a return that is high enough, and halves the learning rate before that."""

from __future__ import annotations

from typing import Any


class StopAtReturn:
    """`'callbacks=[{callback: corridor.callback:StopAtReturn, mean: 0.9}]'`.

    Args:
        mean: return of training episodes at which the run ends.
        halve_at: return from which on the learning rate is half of the configuration's; None: never.
    """

    def __init__(self, mean: float, halve_at: float | None = None) -> None:
        self.mean, self.halve_at, self.rows = mean, halve_at, 0

    def on_row(self, run: Any, row: dict[str, Any]) -> None:
        """Look at the mean return of the last episodes."""
        self.rows += 1
        found = row.get("return_mean")
        if found is None:
            return
        if found >= self.mean:
            run.stop(f"episodes bring {self.mean:g}")
        elif self.halve_at is not None and found >= self.halve_at:
            run.set_learning_rate(run.config.learner.learning_rate / 2)

    def on_end(self, run: Any, summary: dict[str, Any]) -> None:
        """Leave a line in the run's folder."""
        (run.run_dir / "rows.txt").write_text(f"{self.rows} rows, {summary['status']}\n")
