"""TensorBoard's event file, read back by TensorBoard's own reader."""

import sys
from datetime import datetime

import pytest

from trainer.config.fields import ConfigError
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers import open_loggers
from trainer.telemetry.loggers.sink import Event
from trainer.telemetry.loggers.tensorboard import open_tensorboard


def test_scalars_stand_at_their_frames(run, real_rows):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = open_tensorboard(LoggerConfig(name="tensorboard"), run, pytest.fail)
    trained = [row["frames"] for row in real_rows if "updates" in row][-1]
    for row in real_rows:
        sink.write(row)
    sink.event(Event(datetime(2025, 1, 2, 3, 4, 5), "evaluator", "evaluation 99.0"))
    sink.close({"status": "finished"})
    reader = EventAccumulator(str(run.run_dir / "tensorboard"))
    reader.Reload()
    keys = ("loss", "return_mean", "eval_return_mean", "learning_rate", "final_best_return_mean")
    for key in keys:
        written = [(row["frames"], row[key]) for row in real_rows if row.get(key) is not None]
        shown = [(point.step, point.value) for point in reader.Scalars(key)]
        assert shown == [(frames, pytest.approx(value)) for frames, value in written], key
    texts = {"bottleneck", "bottleneck_reason"}
    known = {key for row in real_rows for key, value in row.items() if value is not None}
    assert set(reader.Tags()["scalars"]) == known - texts
    (text,) = reader.Tensors("events/text_summary")
    assert (text.step, text.tensor_proto.string_val[0]) == (trained, b"03:04:05 [evaluator] evaluation 99.0")
    assert b"env.id: CartPole-v1" in reader.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_missing_package_is_one_sentence(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # what Python does with a package that is absent
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        open_loggers(LoggerConfig(name="tensorboard"), run)
