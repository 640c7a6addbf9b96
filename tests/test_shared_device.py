"""The shared agent on a device: the same weights as by the lock, whoever dies, with the CPU as the device.

What is marked `gpu` runs the same code on a CUDA device.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.resuming import differences, go_on, rows_of, stop_at
from tests.test_shared import ALONE, FAMILY, SLOWLY, flat, gradients_of, make_learner
from trainer.config.sections import Config
from trainer.shared_gradient.shared import APPLIED
from trainer.shared_gradient.shared_device import DeviceAgent
from trainer.training.processes import use_fork_server
from trainer.training.train import train

ON_DEVICE = {**ALONE, "applier": "device"}
CPU = torch.device("cpu")
CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True)
def fork_server() -> None:
    use_fork_server()  # which has imported torch


def process(function: Callable[..., None], *arguments: Any) -> Any:
    return CONTEXT.Process(target=function, args=arguments)


def served(shared: DeviceAgent, *processes: Any) -> None:
    """Start the processes, and be the applier until all of them have ended."""
    for own in processes:
        own.start()
    while any(own.exitcode is None for own in processes):
        if not shared.serve():
            time.sleep(1e-4)
    shared.serve()


def send_many(number: int, shared: DeviceAgent, count: int, out: Path) -> None:
    """Body of a process: sends gradients of known seeds, and keeps which version each of them made."""
    torch.set_num_threads(1)
    learner, made = make_learner(), []
    shared.join(number, learner)
    for i in range(count):
        shared.apply(number, learner, gradients_of(learner, 1_000 * number + i))
        assert shared._wait(number)  # hogwild goes on without it
        made.append(int(shared.mail.made[number]))
    torch.save({"made": made, "weights": [p.clone() for p in learner.trained]}, out)


def die_with_a_full_mailbox(number: int, shared: DeviceAgent) -> None:
    learner = make_learner()
    shared.join(number, learner)
    shared.apply(number, learner, gradients_of(learner, 7))  # hogwild does not wait for it
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(list):
    """Gradients whose reader is killed when it has read the first of them."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self[0]
        os.kill(os.getpid(), signal.SIGKILL)


def die_within_a_gradient(number: int, shared: DeviceAgent) -> None:
    learner = make_learner()
    shared.join(number, learner)
    shared.apply(number, learner, Deadly(gradients_of(learner, 8)))


def replayed(learner: Any, seeds: list[int]) -> None:
    for seed in seeds:
        learner.optimize(learner.parts[0], gradients_of(learner, seed))
        learner.conclude()


def assert_weights(shared: DeviceAgent, expected: list[torch.Tensor]) -> None:
    found = [torch.empty_like(p) for p in expected]
    shared.pull(None, found)
    assert all(torch.equal(mine, its) for mine, its in zip(found, expected, strict=True))


@pytest.mark.parametrize("mode", [pytest.param("locked", marks=pytest.mark.slow), "hogwild"])
def test_four_agents_gradients_in_their_order_give_the_same_weights_in_one_process(mode: str, tmp_path: Path) -> None:
    learner, outs = make_learner(), [tmp_path / str(number) for number in range(4)]
    shared = DeviceAgent(learner, 4, CPU, mode)
    served(shared, *[process(send_many, p, shared, 100, outs[p]) for p in range(4)])
    assert shared.version == shared.mail.applied.sum() == 400
    kept = [torch.load(out) for out in outs]
    order = {version: 1_000 * p + i for p, own in enumerate(kept) for i, version in enumerate(own["made"])}
    assert sorted(order) == list(range(1, 401))
    replayed(learner, [order[version] for version in range(1, 401)])
    assert_weights(shared, learner.trained)
    last = next(own for own in kept if own["made"][-1] == 400)
    if mode == "locked":  # whose gradient was the last one holds the weights that it made
        assert all(torch.equal(mine, its) for mine, its in zip(learner.trained, last["weights"], strict=True))


def test_gradient_of_one_that_died_with_a_full_mailbox_is_applied_once(tmp_path: Path) -> None:
    learner, out = make_learner(), tmp_path / "out"
    shared = DeviceAgent(learner, 2, CPU, "hogwild")
    dead = process(die_with_a_full_mailbox, 1, shared)
    dead.start()
    dead.join()
    assert dead.exitcode == -signal.SIGKILL
    assert (shared.mail.sent[1], shared.mail.applied[1]) == (1, 0)
    served(shared, process(send_many, 1, shared, 1, out))  # who takes its place
    assert torch.load(out)["made"] == [2] and shared.updates_of(1) == shared.version == 2
    replayed(learner, [7, 1_000])
    assert_weights(shared, learner.trained)


def test_gradient_that_its_sender_did_not_live_to_end_is_dropped_whole(tmp_path: Path) -> None:
    learner, out = make_learner(), tmp_path / "out"
    shared = DeviceAgent(learner, 2, CPU, "locked")
    dead = process(die_within_a_gradient, 1, shared)
    served(shared, dead)
    assert dead.exitcode == -signal.SIGKILL
    assert (shared.mail.sent[1], shared.version) == (0, 0)
    served(shared, process(send_many, 1, shared, 1, out))
    assert torch.load(out)["made"] == [1]
    replayed(learner, [1_000])
    assert_weights(shared, learner.trained)


def test_who_waits_for_a_closed_one_goes_on(tmp_path: Path) -> None:
    shared = DeviceAgent(make_learner(), 1, CPU, "locked")
    waiting = process(send_many, 0, shared, 1, tmp_path / "out")
    waiting.start()
    while not shared.mail.sent[0]:
        time.sleep(0.01)
    shared.close()
    waiting.join()
    assert waiting.exitcode == 1  # its assertion that the gradient was applied
    assert shared.version == 0


def test_who_waits_for_a_busy_main_process_is_not_taken_for_hung(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main process does nothing for twice as long as an agent may be silent; then it looks who is."""
    serve, asked = DeviceAgent.serve, []

    def busy_once(shared: DeviceAgent) -> bool:
        if shared.version == 100 and not asked:
            asked.append(shared.version)
            while not (shared.mail.sent > shared.mail.applied).all():  # all of them wait
                time.sleep(0.01)
            time.sleep(4.0)
        return serve(shared)

    monkeypatch.setattr(DeviceAgent, "serve", busy_once)
    config = small_config(schedule=ON_DEVICE, agents={"hang_seconds": 2.0}, budget_frames=1_200)
    summary = train(config, [])
    assert asked and summary["status"] == "finished"
    assert summary["learner_restarts"] == 0


def test_device_that_has_failed_leaves_no_process(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(shared: DeviceAgent) -> None:
        raise RuntimeError("CUDA error")  # as every call says once one of them has failed

    monkeypatch.setattr(DeviceAgent, "close", fail)
    with pytest.raises(RuntimeError, match="CUDA error"):
        train(small_config(schedule=ON_DEVICE, budget_frames=400), [])
    assert torch.multiprocessing.active_children() == []


@pytest.mark.slow  # in tests/test_shared.py without a device
@pytest.mark.parametrize("second", ["device", "local"])
def test_it_goes_on_bit_for_bit_too(second: str, small_config: Callable[..., Config]) -> None:
    """Also where the local agents apply their gradients by themselves from then on."""
    sections = {
        "algorithm": {"hidden_sizes": [16], **FAMILY["everything"]}, "budget_frames": 2_400,
        "logger": {"every_seconds": 0.01},
    }  # fmt: skip
    whole = small_config("whole", schedule=ON_DEVICE, **sections)
    cut = small_config("cut", schedule=ON_DEVICE, env=SLOWLY, **sections)
    train(whole, [])
    stop_at(Path(str(cut.run_dir)), 700)
    stopped = train(cut, [])
    assert stopped["status"] == "stopped" and stopped["frames"] < 2_400
    assert go_on(cut, schedule=replace(cut.schedule, applier=second))["status"] == "finished"
    for part in ("learner", "sampler", "limiter", "frames"):
        assert differences(flat(whole, "local_0")[part], flat(cut, "local_0")[part]) == []
    mine, its = flat(whole)["shared"], flat(cut)["shared"]
    assert torch.equal(mine["state"], its["state"]) and mine["version"] == its["version"] == mine["steps"]
    assert its["counts"][0, APPLIED] == its["version"]


def counts_of(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last row with the shared optimiser's steps, and the shared agent's checkpoint."""
    return [row for row in rows_of(Path(str(config.run_dir))) if "optimizer_steps" in row][-1], flat(config)["shared"]


@pytest.mark.parametrize("application", [pytest.param("locked", marks=pytest.mark.slow), "hogwild"])
def test_every_update_is_a_step_of_the_shared_optimiser(application: str, small_config: Callable[..., Config]) -> None:
    schedule = {"name": "shared_gradient", "num_agents": 3, "application": application, "applier": "device"}
    config = small_config(schedule=schedule, budget_frames=6_000, env=SLOWLY)
    summary = train(config, [])
    assert summary["status"] == "finished" and 6_000 <= summary["frames"] < 6_000 + 3 * 128
    row, shared = counts_of(config)
    updates, frames = ([row[f"local_{p}/{what}"] for p in range(3)] for what in ("updates", "frames"))
    assert updates == [max(0, frames_of_agent - 200) // 4 for frames_of_agent in frames]
    assert summary["updates"] == sum(updates) == shared["version"] == shared["steps"] == row["optimizer_steps"]
    assert shared["counts"][:, APPLIED].tolist() == updates
    assert "lock_recoveries" not in row  # nobody takes a lock
    learned = [p for p in range(3) if updates[p]]  # on a busy machine one may come too late to learn
    assert len(learned) >= 2
    assert all(row[f"local_{p}/staleness_updates"] > 0 for p in learned)  # others came between


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("application", ["locked", "hogwild"])
def test_on_a_gpu_every_update_is_a_step_too(application: str, small_config: Callable[..., Config]) -> None:
    config = small_config(
        schedule={"name": "shared_gradient", "num_agents": 2, "application": application},
        learner={"device": "cuda"}, budget_frames=6_000,
    )  # fmt: skip
    summary = train(config, [])
    assert summary["status"] == "finished"
    _, shared = counts_of(config)
    assert summary["updates"] == shared["version"] == shared["steps"] > 1_000
    assert torch.isfinite(shared["state"]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_steps_are_those_of_the_cpu(tmp_path: Path) -> None:
    learner, out = make_learner(), tmp_path / "out"
    shared = DeviceAgent(learner, 1, torch.device("cuda"), "locked")
    served(shared, process(send_many, 0, shared, 100, out))
    replayed(learner, list(range(100)))
    for mine, its in zip(torch.load(out)["weights"], learner.trained, strict=True):
        torch.testing.assert_close(mine, its)
    shared.close()
