import json
import math

import pytest

from benchmarks.report import Row, figure, parser, show

ROWS = [
    Row("fast enough", 0.9, bar=0.8),
    Row("too slow", 0.7, bar=0.8),
    Row("too big", 500.0, "MB", 400.0, at_most=True),
    Row("not measured", math.nan, bar=1.0),
    Row("for information", 3.0, "s"),
]


def test_a_bar_is_a_least_or_a_most_value_and_nan_meets_none() -> None:
    assert [row.holds for row in ROWS] == [True, False, False, False, None]
    assert Row("exactly", 400.0, "MB", 400.0, at_most=True).holds is True
    assert Row("exactly", 0.8, bar=0.8).holds is True


def test_json_is_a_list_of_rows_with_five_keys_each(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "rows.json"
    show("Title", ROWS, path, note="2 cores")
    written = json.loads(path.read_text())
    assert written[2] == {"name": "too big", "value": 500.0, "bar": 400.0, "unit": "MB", "holds": False}
    assert written[3]["value"] is None and written[3]["holds"] is False
    assert written[4]["bar"] is None and written[4]["holds"] is None
    printed = capsys.readouterr().out
    for row in ROWS:
        assert row.name in printed
    assert ">= 0.8" in printed and "<= 400" in printed and "2 cores" in printed


def test_numpy_values_become_plain_json(tmp_path) -> None:
    numpy = pytest.importorskip("numpy")
    show("Title", [Row("of numpy", numpy.float32(2.0), bar=1.0)], tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())[0] == {
        "name": "of numpy", "value": 2.0, "bar": 1.0, "unit": "x", "holds": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8614, "0.861"), (12.34, "12.3"), (123_456.0, "123,456"), (0.0, "0"), (0.00123, "0.00123"), (math.inf, "-")],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert figure(value) == text


def test_every_benchmark_has_the_same_three_arguments(tmp_path) -> None:
    args = parser("Title", seconds=2.0, repeats=7).parse_args(["--json", str(tmp_path / "x.json")])
    assert (args.seconds, args.repeats, args.json) == (2.0, 7, tmp_path / "x.json")
