"""Checkpoints: whole or not there at all, loaded without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.reading import ReadError
from trainer.run_folder import manifest
from trainer.run_folder.checkpoint import load, numbered, save, write_aside


class Malicious:
    """Pickled code that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def one_sentence(text: str) -> bool:
    return "\n" not in text and ". " not in text


def test_what_is_saved_is_loaded(tmp_path):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    state = {"weights": torch.arange(5.0), "optimizer": optimizer.state_dict(), "frames": 7, "nested": {"none": None}}
    loaded = load(save(tmp_path, state, frames=7, keep_last=1))
    assert torch.equal(loaded["weights"], torch.arange(5.0))
    assert loaded["optimizer"] == optimizer.state_dict()
    assert loaded["frames"] == 7 and loaded["nested"] == {"none": None} and loaded["format"] == 2


def test_a_numpy_generator_goes_on_where_it_was(tmp_path):
    rng = np.random.default_rng(3)
    rng.integers(0, 10, 7, dtype=np.int32)  # leaves half of a 64-bit draw behind
    write_aside({"rng": rng.bit_generator.state}, tmp_path / "a.pt")
    other = np.random.default_rng(99)
    other.bit_generator.state = load(tmp_path / "a.pt")["rng"]
    assert other.integers(0, 10**9, 50).tolist() == rng.integers(0, 10**9, 50).tolist()
    assert other.integers(0, 10, 5, dtype=np.int32).tolist() == rng.integers(0, 10, 5, dtype=np.int32).tolist()


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path):
    manifest.begin(tmp_path)
    write_aside({}, tmp_path / "best" / "policy.pt")
    manifest.add(manifest.aside_of(tmp_path / "summary.json"))
    for name in ("best/.policy.pt.partial", ".summary.json.partial", "best/.mine.partial"):
        (tmp_path / name).write_bytes(b"half")
    manifest.remove_partial(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"best/policy.pt", "best/.mine.partial", "manifest.txt"}


def test_only_the_newest_are_kept_and_in_order(tmp_path):
    manifest.begin(tmp_path)
    for frames in (5, 40, 300, 2_000, 10_000):
        path = save(tmp_path, {"frames": frames}, frames, keep_last=2)
        assert path.name == f"frames_{frames:012d}.pt"
    assert [load(path)["frames"] for path in numbered(tmp_path)] == [2_000, 10_000]
    assert len(list(tmp_path.iterdir())) == 3  # with the manifest


def test_a_failed_write_leaves_the_earlier_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "last.pt"
    write_aside({"frames": 1}, path)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        write_aside({"frames": 2, "no": lambda: None}, path)
    assert load(path)["frames"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_no_file_is_one_sentence(tmp_path):
    with pytest.raises(ReadError, match="there is no checkpoint .*missing.pt") as caught:
        load(tmp_path / "missing.pt")
    assert one_sentence(str(caught.value).replace(".pt", ""))


def test_a_torn_file_is_one_sentence_wherever_it_is_torn(tmp_path):
    path = tmp_path / "torn.pt"
    write_aside({"weights": torch.randn(100), "frames": 3}, path)
    whole = path.read_bytes()
    for length in {0, 1, 2, 4, 30, *range(50, len(whole) - 1, 97)}:
        path.write_bytes(whole[:length])
        with pytest.raises(ReadError, match=r"torn\.pt is torn") as caught:
            load(path)
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_garbage_is_a_checkpoint_error_whatever_it_holds(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "garbage.pt"
    for _ in range(300):
        path.write_bytes(rng.bytes(int(rng.integers(1, 200))))
        with pytest.raises(ReadError, match="garbage.pt"):
            load(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_pickled_code_is_refused_and_not_run(tmp_path, form):
    path, trace = tmp_path / "evil.pt", tmp_path / "was_here"
    if form == "torch":
        torch.save({"weights": torch.ones(2), "extra": Malicious(trace)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(ReadError, match="more than tensors and plain values") as caught:
        load(path)
    assert not trace.exists()
    assert "\n" not in str(caught.value)
    pickle.loads(path.read_bytes()) if form == "pickle" else torch.load(path, weights_only=False)
    assert trace.exists()  # the trap was real
