"""A policy for other runtimes: ONNX, and PyTorch's exported programs; and its policy file.

An exported policy takes what the environment gives, one array for each leaf of the observation with a first axis [N]
for a batch of any size, and the legal actions where there are masks. It returns

    action  as the environment takes it, [N, ...]
    values  float32 [N, num_actions], -inf where an action is illegal; [N, 1] and NaN of an actor, which knows none;
            [N, 1] of several choices at once: the mean of the best choices' values

A leaf with a frame stack takes the last frames, [N, stack, ...], the newest last. The inputs are named as the leaves
(`observation`, `observation.camera`), the mask `action_mask`. The file carries the policy file's header as text.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from trainer.acting.acting import Acting, acting_of
from trainer.acting.policies import Chooser
from trainer.config.fields import ConfigError
from trainer.envs import EnvSpec
from trainer.memory.weights import ordered_tensors
from trainer.networks.encoders import let_stack
from trainer.roles.policies import save_policy, shapes_of
from trainer.run_folder import policy_file
from trainer.run_folder.folder import package_versions

if TYPE_CHECKING:
    from trainer.api.policy import Policy

SUFFIXES = (".onnx", ".pt2")
OPSET = 18  # of ONNX; every runtime since 2023 has it
EXAMPLE = 2  # rows of the example; 1 would be taken for a constant


class Exported(nn.Module):
    """Observations as the environment gives them -> actions as it takes them, and values.

    Args:
        network: of the agent.
        acting: how it acts by the network.
        spec: the environment.
    """

    def __init__(self, network: nn.Module, acting: Acting, spec: EnvSpec) -> None:
        super().__init__()
        self.chooser = Chooser(network, acting.choose, spec.action.has_mask, False)
        self.leaves = spec.leaves
        start = spec.action.for_env(np.zeros(spec.action.shape, spec.action.dtype))
        self.start = torch.from_numpy(np.asarray(start)) if start.any() else None

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Leaves [N, ...], and the mask where there is one, to `action` and `values`."""
        seen = list(inputs)
        for number, leaf in enumerate(self.leaves):
            if leaf.start:
                seen[number] = seen[number] - torch.tensor(leaf.start).reshape(leaf.shape if not leaf.scalar else ())
            if leaf.scalar:
                seen[number] = seen[number].unsqueeze(-1)
        action, values = self.chooser(*seen)
        return action if self.start is None else action + self.start, values


def export(policy: Policy, path: Path) -> Path:
    """Write a policy for ONNX (`.onnx`) or as PyTorch's exported program (`.pt2`).

    Raises:
        ValueError: the path ends in something else.
        ConfigError: a package is missing.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    network = copy.deepcopy(policy.module).eval().requires_grad_(False)
    let_stack(network)
    module, spec = Exported(network, acting_of(policy.tensordict_module), policy.spec).eval(), policy.spec
    example, names = _example(spec), [leaf.name for leaf in spec.leaves]
    names += ["action_mask"] if spec.action.has_mask else []
    batch = torch.export.Dim("batch", min=1)
    about = json.dumps(_header(policy))
    with _quiet(), torch.no_grad():
        program = torch.export.export(module, example, dynamic_shapes=(tuple({0: batch} for _ in example),))
        if path.suffix == ".pt2":
            torch.export.save(program, path, extra_files={policy_file.KEY: about})
        else:
            _to_onnx(program, path, names, about)
    return path


def save(policy: Policy, path: Path) -> Path:
    """Write the policy file of one agent.

    Raises:
        ValueError: the path ends in something else than `.safetensors`.
        OSError: it could not be written.
    """
    if path.suffix != policy_file.SUFFIX:
        raise ValueError(f"{path} must end in {policy_file.SUFFIX}")
    header = _header(policy)
    flat = torch.cat([tensor.detach().reshape(-1) for _, tensor in ordered_tensors(policy.tensordict_module)])
    save_policy(path.absolute(), header, flat, int(header.get("frames", 0)), header.get("returns", {}))
    return path


def _header(policy: Policy) -> dict[str, Any]:
    """What a policy's file says of it, of this agent alone."""
    agent = policy_file.Agent(policy.agent, policy.spec, shapes_of(policy.tensordict_module))
    made = policy_file.header(policy.config, [agent], [], package_versions())
    kept = ("command", "versions", "frames", "returns")
    return made | {key: policy.header[key] for key in kept if key in policy.header}


def _example(spec: EnvSpec) -> tuple[Tensor, ...]:
    """Inputs of two rows, as the environment gives them."""
    found = []
    for leaf in spec.leaves:
        shape = () if leaf.scalar else leaf.seen_shape
        array = torch.zeros(EXAMPLE, *shape, dtype=getattr(torch, leaf.dtype))
        found.append(array + torch.tensor(leaf.start).reshape(shape) if leaf.start else array)
    if spec.action.has_mask:
        found.append(torch.ones(EXAMPLE, spec.num_actions, dtype=torch.bool))
    return tuple(found)


def _to_onnx(program: Any, path: Path, names: list[str], about: str) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter is made of it
    except ImportError as error:
        raise ConfigError(f"{path.name} needs the packages onnx and onnxscript: pip install onnx onnxscript") from error
    made = torch.onnx.export(
        program, input_names=names, output_names=["action", "values"], opset_version=OPSET, dynamo=True, verbose=False
    )
    assert made is not None
    model = made.model_proto
    onnx.helper.set_model_props(model, {policy_file.KEY: about})
    onnx.checker.check_model(model)
    onnx.save(model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of torch's exporter, which are for its developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
