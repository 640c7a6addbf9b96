"""The tests' own environment trains: what the other tests of this folder find is the fault that they name."""

from __future__ import annotations


def test_an_environment_without_any_fault_trains(run):
    ended = run("env.id=Hurting/Plain-v0")
    assert ended.code == 0, ended.said
    assert ended.summary["status"] == "finished" and ended.summary["frames"] == 600
