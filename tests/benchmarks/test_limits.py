"""The limits of acting and updates: operations that can be counted by hand, and a value in every row."""

import math

import pytest

from benchmarks.limits import JOBS, Layout, measure

PHASES, ROWS = 2, 6  # acting and an update


def test_operations_are_those_of_the_layers() -> None:
    rows = {row.name.removeprefix("CartPole, MLP 120-84, "): row.value for row in measure("cartpole", 0.02, 1)}
    layers, envs, batch = 4 * 120 + 120 * 84 + 84 * 2, 16, 128
    assert rows["acting: operations"] * 1e6 == pytest.approx(2 * envs * layers)
    # Three passes forwards (states, next states by both networks) and two backwards, but no gradient of the states.
    assert rows["update: operations"] * 1e6 == pytest.approx(2 * batch * (5 * layers - 4 * 120))
    assert len(rows) == PHASES * ROWS and all(0 < value < math.inf for value in rows.values())


def test_a_layout_has_the_strides_that_were_noted() -> None:
    torch = pytest.importorskip("torch")
    tensor = Layout((3, 4), (1, 3)).filled(torch.bfloat16)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == ((3, 4), (1, 3), torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JOBS if name != "cartpole"])
def test_every_row_of_every_job_has_a_value(name: str) -> None:
    rows = measure(name, 0.01, 1)
    assert len(rows) == PHASES * ROWS and all(0 < row.value < math.inf for row in rows)
