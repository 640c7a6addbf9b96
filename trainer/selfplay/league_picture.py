"""Draw a league: the share of games won of each pair, and ratings over frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

MAX_NUMBERED = 26  # with more players the matrix has no room for numbers


def draw(result: dict[str, Any], title: str) -> Figure:
    """Draw the result of `trainer.selfplay.league.league`."""
    count = len(result["players"])
    side = max(4.5, 0.36 * count + 2)
    figure = Figure(figsize=(side + 6, side), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    matrix, rating = figure.subplots(1, 2, width_ratios=[side, 6])
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    _matrix(figure, matrix, result)
    _ratings(rating, result["players"])
    return figure


def _matrix(figure: Figure, axes: Axes, result: dict[str, Any]) -> None:
    names = [_label(player) for player in result["players"]]
    share = np.array([[np.nan if cell is None else cell for cell in row] for row in result["score"]])
    image = axes.imshow(share, cmap="RdYlGn", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_title(f"share won by row against column, {result['games_per_pair']} games a pair", fontsize="medium")
    if len(names) <= MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(share):
            if not np.isnan(value):
                axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize="x-small")
    figure.colorbar(image, ax=axes, shrink=0.7)


def _ratings(axes: Axes, players: list[dict[str, Any]]) -> None:
    for kind, colour, marker in (("snapshot", "tab:blue", "o-"), ("policy", "tab:orange", "D")):
        chosen = [player for player in players if player["kind"] == kind]
        if chosen:
            frames, elo, half = (
                np.array([player[key] for player in chosen]) for key in ("frames", "elo", "elo_half_width")
            )
            label = "snapshots" if kind == "snapshot" else " and ".join(player["name"] for player in chosen)
            axes.errorbar(frames, elo, half, fmt=marker, color=colour, markersize=4, capsize=2, label=label)
    for player, style in zip([p for p in players if p["frames"] is None], (":", "--"), strict=False):
        axes.axhline(player["elo"], color="grey", linestyle=style, label=player["name"])
    axes.set(xlabel="frames", ylabel="Elo, random play is 0")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", framealpha=0.8)


def _label(player: dict[str, Any]) -> str:
    return EngFormatter(sep="", places=1)(player["frames"]) if player["kind"] == "snapshot" else player["name"]
