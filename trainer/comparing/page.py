"""One HTML page that compares runs. It needs no other file and no network: pictures and videos are part of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from trainer.comparing.groups import MISSING, Group, differences, environments, value_text
from trainer.comparing.picture import draw_curves, draw_profiles, drawn
from trainer.comparing.profiles import Profiles, profiles
from trainer.comparing.runs import Run
from trainer.comparing.statistics import NAMES, STATISTICS, score_of
from trainer.config.fields import ConfigError
from trainer.config.run_files import RunFolder
from trainer.reading import ReadError, read_json, read_text
from trainer.telemetry.rows import value_of

VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}
LARGEST_VIDEO = 8 * 2**20  # bytes; a larger one is named, not included

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
div.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap }
th { border-bottom: 2px solid #999 }
img, video { max-width: 100%; height: auto }
p.note { color: #666 } pre { background: #f4f4f4; overflow-x: auto; padding: 0.6rem }
figure { display: inline-block; margin: 0 1rem 1rem 0; max-width: 22rem; vertical-align: top }
</style>
</head>
<body>
{%- macro table(head, lines) %}
<div class="wide"><table>
<tr>{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr>
{%- for line in lines %}
<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table></div>
{%- endmacro %}
<h1>{{ title }}</h1>
<p>{{ count }} runs in {{ groups }} groups. A run's <b>score</b> is the mean return of its best policy in the final
evaluation, on fresh episodes; of a run without one, the mean return of its newest evaluation.</p>
<h2>Learning curves</h2>
<img alt="learning curves" src="{{ curves }}">
{% for note in notes %}<p class="note">{{ note }}</p>{% endfor %}
<h2>Scores</h2>
{{ table(score_head, scores) }}
{% if profile %}
<h2>Performance profiles</h2>
<p>The share of a group's runs with a score above a threshold: a group whose line lies above another's is better at
every threshold. The bands are 95 % stratified bootstrap intervals.</p>
<img alt="performance profiles" src="{{ profile }}">
<h2>Probability of improvement</h2>
<p>How likely a run of one group has a higher score than a run of the other; a draw counts as half (rliable).</p>
{{ table(("group", "better than", "probability", "95 % interval"), pairs) }}
{% endif %}
{% if profile_note %}<p class="note">{{ profile_note }}</p>{% endif %}
<h2>What differs in the configurations</h2>
{% if differing %}{{ table(differing_head, differing) }}{% else %}<p>Nothing but the seed.</p>{% endif %}
{% if videos %}
<h2>Videos</h2>
{% for video in videos %}
<figure>
{%- if video.kind == "video/mp4" %}<video controls loop muted src="{{ video.data }}"></video>
{%- elif video.kind %}<img alt="video" src="{{ video.data }}">{% endif %}
<figcaption>{{ video.text }}</figcaption></figure>
{% endfor %}
{% endif %}
<h2>Runs</h2>
{{ table(run_head, runs) }}
<h2>Commands</h2>
{% for label, command in commands %}<p>{{ label }}:</p><pre>{{ command }}</pre>{% endfor %}
</body>
</html>
"""


def page(groups: Sequence[Group], statistic: str) -> tuple[str, list[str]]:
    """Write the page.

    Args:
        groups: that are compared.
        statistic: a key of `STATISTICS`.

    Returns:
        The text of the page, and sentences about what is left out, which it has too.

    Raises:
        ReadError: a video or a command could not be read.
    """
    runs = [run for group in groups for run in group.runs]
    envs = environments(runs)
    picture, notes = draw_curves(groups, statistic)
    found, without = _profiles(drawn(groups, statistic))
    differing = differences(runs)
    text = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(PAGE)
    return text.render(
        title=f"Comparison: {', '.join(envs)}",
        count=len(runs),
        groups=len(groups),
        curves=_inline(picture),
        notes=notes,
        score_head=("environment", "group", "runs", NAMES[statistic], "95 % interval", "lowest", "highest",
                    "frames (median)", "minutes (median)", "frames/s (median)"),
        scores=[_score_line(env_id, group, statistic) for env_id in envs for group in groups
                if any(run.env_id == env_id for run in group.runs)],
        profile=_inline(draw_profiles(found)) if found else "",
        profile_note=found.note if found else without,
        pairs=_pairs(found),
        differing_head=("key", *(group.label for group in groups)),
        differing=[(key, *(_values(group, key) for group in groups)) for key in differing],
        videos=[video for group in groups for video in _videos(group)],
        run_head=("run", "group", "environment", "seed", "status", "score", "frames", "minutes", "solved at", "commit"),
        runs=[_run_line(group, run) for group in groups for run in group.runs],
        commands=[(group.label, _command(group.runs[0])) for group in groups],
    ), [*notes, without] if without else notes  # fmt: skip


def _profiles(groups: Sequence[Group]) -> tuple[Profiles | None, str]:
    """How the groups compare, and a sentence where that is not known, as rliable is not installed."""
    try:
        return profiles(groups), ""
    except ConfigError as error:
        return None, str(error)


def _inline(picture: Figure) -> str:
    file = io.BytesIO()
    picture.savefig(file, format="png", metadata={"Software": None})
    return _data("image/png", file.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _score_line(env_id: str, group: Group, statistic: str) -> tuple[Any, ...]:
    runs = [run for run in group.runs if run.env_id == env_id]
    scores = [run.score for run in runs if run.score is not None]
    score = score_of(runs, STATISTICS[statistic])
    figures = (MISSING,) * 4
    if score is not None:
        figures = (f"{score[0]:.4g}", f"{score[1]:.4g} to {score[2]:.4g}", f"{min(scores):.4g}", f"{max(scores):.4g}")
    frames = median(_last(run, "frames") for run in runs)
    minutes = median(_last(run, "wall_s") for run in runs) / 60
    speed = median(_last(run, "frames") / max(_last(run, "wall_s"), 1e-9) for run in runs)
    return env_id, group.label, len(runs), *figures, f"{frames:,.0f}", f"{minutes:.1f}", f"{speed:,.0f}"


def _run_line(group: Group, run: Run) -> tuple[Any, ...]:
    solved, score = run.summary.get("solved_frames"), run.score
    return (
        run.folder.name, group.label, run.env_id, run.config.get("seed", MISSING), run.status,
        MISSING if score is None else f"{score:.4g}", f"{_last(run, 'frames'):,.0f}",
        f"{_last(run, 'wall_s') / 60:.1f}", MISSING if solved is None else f"{solved:,}", _commit(run),
    )  # fmt: skip


def _last(run: Run, key: str) -> float:
    """The largest value of a key over the rows; 0 where no row has it."""
    return max((value for row in run.rows if (value := value_of(row, key)) == value), default=0.0)


def _pairs(found: Profiles | None) -> list[tuple[str, str, str, str]]:
    pairs = found.pairs.items() if found else ()
    return [(x, y, f"{p:.2f}", f"{low:.2f} to {high:.2f}") for (x, y), (p, low, high) in pairs]


def _values(group: Group, key: str) -> str:
    return ", ".join(dict.fromkeys(value_text(run.config.get(key, MISSING)) for run in group.runs))


def _videos(group: Group) -> Iterator[dict[str, str]]:
    """The newest video of the group's run with the highest score among those that have one."""
    with_video = [(run, files) for run in group.runs if (files := _video_files(run.folder))]
    if not with_video:
        return
    run, files = max(with_video, key=lambda found: float("-inf") if found[0].score is None else found[0].score)
    file = max(files, key=lambda path: path.stat().st_mtime)
    text = f"{group.label}: {run.folder.name}/{file.relative_to(run.folder)}"
    if file.stat().st_size > LARGEST_VIDEO:
        yield {"text": f"{text} (too large for this page)", "kind": "", "data": ""}
    else:
        kind = VIDEOS[file.suffix]
        yield {"text": text, "kind": kind, "data": _data(kind, file.read_bytes())}


def _video_files(folder: Path) -> list[Path]:
    return [
        path
        for pattern in ("*", f"{RunFolder(folder).videos.name}/*")
        for path in folder.glob(pattern)
        if path.suffix in VIDEOS
    ]


def _commit(run: Run) -> str:
    try:
        commit = read_json(RunFolder(run.folder).versions).get("git_commit")
    except ReadError:
        return MISSING
    return str(commit)[:7] if commit else MISSING


def _command(run: Run) -> str:
    try:
        return read_text(RunFolder(run.folder).command).strip()
    except ReadError:
        return MISSING
