"""Parts of an update that see the same weights, at once in threads: the same bits, and only where that is possible."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.algorithms.test_actor_critic import OPTIONS, batches, made, spec_of
from trainer.config.sections import LearnerConfig
from trainer.learning import threads
from trainer.learning.threads import Threads
from trainer.learning.update import NotFinite, Updater


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SMALLEST", 0.0)
    monkeypatch.setattr(threads, "available_cores", lambda: 2)


def updaters(name: str, **options: Any) -> list[Updater]:
    """One after the other, and at once."""
    return [
        made(name, spec_of(name), "trace", LearnerConfig(learning_rate=3e-3, batch_size=32, parallel_parts=at_once),
             **options)
        for at_once in (False, True)
    ]  # fmt: skip


def at_once(updater: Updater) -> bool:
    return updater.phases[0][0].not_finite is not None


@pytest.mark.parametrize(
    ("name", "options"), [("sac", "plain"), ("sac", "fixed"), ("tqc", "plain"), ("sac_discrete", "plain")]
)
def test_threads_change_no_bit(name: str, options: str) -> None:
    alone, both = updaters(name, **OPTIONS[options])
    for _, batch in zip(range(20), batches(spec_of(name), 32), strict=False):
        assert torch.equal(alone.update(batch), both.update(batch))
    assert (at_once(alone), at_once(both)) == (False, True)
    tensors = [[*one.trained, *one.targets, *one.first, *one.second] for one in (alone, both)]
    assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    assert alone.metrics() == both.metrics()


def test_parts_that_write_what_others_read_take_turns() -> None:
    """CrossQ's critics write the statistics with which its actor's loss normalises."""
    _, crossq = updaters("crossq", actor_every_updates=1)
    crossq.update(next(batches(spec_of("crossq"), 32)))
    assert len(crossq.phases[0]) == 2 and not at_once(crossq)


@pytest.mark.parametrize("group", ["actor_network_params", "qvalue_network_params"])
def test_a_gradient_that_is_not_finite_stops_both_parts(group: str) -> None:
    """Whichever part meets it: no weight of either changes from then on."""
    _, both = updaters("sac")
    source = batches(spec_of("sac"), 32)
    both.update(next(source))
    (trained,) = [one for one in both.of_groups if one.group.name == group]
    trained.weights[0].fill_(torch.nan)
    before = [weight.clone() for weight in both.trained]
    both.update(next(source))
    assert at_once(both)
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, both.trained, strict=True))
    with pytest.raises(NotFinite):
        both.check()


def test_a_call_that_no_thread_has_begun_is_computed_by_the_caller() -> None:
    """The only thread is busy until the caller has both results."""
    pool, free = Threads(), threading.Event()
    call = (lambda x: (x + 1,), (torch.zeros(1),))
    assert [float(x) for (x,) in pool.run([call, call])] == [1, 1]
    assert pool._pool is not None
    busy = pool._pool.submit(free.wait, 30)
    assert [float(x) for (x,) in pool.run([call, call])] == [1, 1]
    assert not busy.done()
    free.set()
