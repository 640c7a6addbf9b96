"""Registries: the names that a key takes, with an import path for each. No other file lists these names.

A path is `package.module:object`, which is imported where the object is used. So a wrong argument is refused before
slow imports. Each of these keys also takes such a path itself, of a part of the user's: see `trainer.config.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.envs.import_paths import part_at

# algorithm.activation: a module of torch without arguments.
ACTIVATIONS = {"relu": "torch.nn:ReLU", "tanh": "torch.nn:Tanh", "silu": "torch.nn:SiLU"}

# algorithm.cnn: `cnn(channels) -> nn.Sequential` over images; its last part is an activation.
CNNS = {
    "nature": "trainer.networks.encoders:nature",
    "efficient": "trainer.networks.encoders:efficient",
    "small": "trainer.networks.encoders:small",
}

# algorithm.loss_function: `distance(difference) -> its loss`, entry by entry. TorchRL's DQNLoss has its own two.
LOSS_FUNCTIONS = {"smooth_l1": "trainer.algorithms.targets:huber", "l2": "trainer.algorithms.targets:half_square"}

# learner.learning_rate_schedule: `schedule(optimizer, start, end) -> LRScheduler` of PyTorch, of 100 steps.
LEARNING_RATES = {
    "constant": "trainer.learning.rates:constant",
    "linear": "trainer.learning.rates:linear",
    "cosine": "trainer.learning.rates:cosine",
}

# collector.exploration: `exploration(section, num_streams, streams) -> frames -> rates and their mean`.
EXPLORATIONS = {"linear": "trainer.acting.exploration:linear", "apex": "trainer.acting.exploration:apex"}

# The same names for algorithms that add noise to actions in a box: `noise(sigma, section, num_streams, streams)`: the
# noise's deviation. With an exploration of the user's, which gives epsilons, it is that of `linear`.
NOISES = {"linear": "trainer.acting.exploration:same_noise", "apex": "trainer.acting.exploration:apex_noise"}

# cluster.name: `place(config, address) -> Places`, see `trainer.cluster.placing`; "": all collectors run here.
CLUSTERS = {
    "none": "",
    "ray": "trainer.cluster.ray_nodes:RayNodes",
    "local": "trainer.cluster.placing:LocalNodes",
}

# logger.name: `open_sink(config, run, notify) -> Sink`; and the sinks that are always on, the terminal's last, as it
# draws over what others print.
OPTIONAL_LOGGERS = {
    "wandb": "trainer.telemetry.loggers.wandb:open_wandb",
    "tensorboard": "trainer.telemetry.loggers.tensorboard:open_tensorboard",
}
LOGGERS = {
    **OPTIONAL_LOGGERS,
    "jsonl": "trainer.telemetry.loggers.jsonl:open_jsonl",
    "csv": "trainer.telemetry.loggers.csv:open_csv",
    "text": "trainer.telemetry.loggers.text:open_text",
    "terminal": "trainer.telemetry.loggers.terminal:open_terminal",
}


def registered(registry: Mapping[str, str], name: str) -> Any:
    """The object of a name in a registry, or of an import path.

    Raises:
        NoPart: the path leads nowhere.
    """
    return part_at(registry.get(name, name))
