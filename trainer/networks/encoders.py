"""Encoders: one leaf of an observation in, features out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.config.algorithms import AlgorithmConfig
from trainer.config.fields import ConfigError
from trainer.config.registries import CNNS, registered
from trainer.envs import EnvSpec, Leaf
from trainer.envs.import_paths import part_at

# Buffers of the statistics in the weights of whoever acts, see `trainer.learning.normalization`.
RUNNING_MEAN, RUNNING_SCALE, RETURN_SCALE = "running_mean", "running_scale", "return_scale"


def encoders_of(spec: EnvSpec, section: AlgorithmConfig, channels_last: bool) -> tuple[nn.ModuleList, int]:
    """An encoder for each leaf in the spec's order: numbers are flattened, categories one-hot, images convolved.

    Args:
        spec: the environment.
        section: the algorithm's.
        channels_last: memory format of convolutions.

    Returns:
        The encoders, and the number of features of all of them.

    Raises:
        ConfigError: `algorithm.scale_observations` is set, and no leaf has bounds; or an encoder of the user's is for a
            leaf that there is not, or gives something else than features.
    """
    if section.scale_observations and not any(leaf.low for leaf in spec.leaves):
        raise ConfigError(
            f"algorithm.scale_observations=true scales numbers with finite bounds, and {spec.id} declares none: "
            "leave it out, or declare them in its observation space"
        )
    if section.normalize_observations and not any(leaf.kind == "vector" for leaf in spec.leaves):
        raise ConfigError(
            f"algorithm.normalize_observations=true normalises numbers, and {spec.id} shows none: leave it out"
        )
    encoders: list[nn.Module] = []
    paths = _paths(spec, section.encoders)
    for leaf in spec.leaves:
        if leaf.name in paths:
            encoders.append(_made(paths[leaf.name], leaf, section))
        elif leaf.kind == "image":
            encoders.append(Image(leaf, section.cnn, channels_last, section.scale_observations))
        elif leaf.kind == "discrete":
            encoders.append(OneHot(leaf.nvec))
        else:
            clip = section.normalize_clip if is_normalized(leaf, section) else None
            encoders.append(Flatten(leaf, section.scale_observations, clip))
    with torch.no_grad():
        width = sum(
            encoder(torch.zeros(1, *leaf.seen_shape, dtype=getattr(torch, leaf.dtype))).shape[1]
            for encoder, leaf in zip(encoders, spec.leaves, strict=True)
        )
    joined = nn.ModuleList(encoders)
    if section.normalize_rewards:  # for whoever compares values with returns; the network does not use it
        joined.register_buffer(RETURN_SCALE, torch.ones(()))
    return joined, width


def is_normalized(leaf: Leaf, section: AlgorithmConfig) -> bool:
    """Whether a leaf is normalised: numbers are; images, categories, bits and what a user's encoder takes are not."""
    short = leaf.name.removeprefix("observation.")
    return section.normalize_observations and leaf.kind == "vector" and not {leaf.name, short} & set(section.encoders)


def _paths(spec: EnvSpec, encoders: Mapping[str, str]) -> dict[str, str]:
    """The import paths of `algorithm.encoders` by the leaves' full names; they may leave out `observation.`."""
    names = {name: leaf.name for leaf in spec.leaves for name in (leaf.name, leaf.name.removeprefix("observation."))}
    for name in encoders:
        if name not in names:
            raise ConfigError(
                f"algorithm.encoders.{name} names no part of {spec.id}'s observation: it has "
                f"{', '.join(leaf.name.removeprefix('observation.') for leaf in spec.leaves)}"
            )
    return {names[name]: path for name, path in encoders.items()}


def _made(path: str, leaf: Leaf, section: AlgorithmConfig) -> nn.Module:
    """A user's encoder of a leaf, which is tried with two observations."""
    encoder: nn.Module = part_at(path)(leaf, section)
    name = f"algorithm.encoders.{leaf.name.removeprefix('observation.')}={path}"
    example = torch.zeros(2, *leaf.seen_shape, dtype=getattr(torch, leaf.dtype))
    if not isinstance(encoder, nn.Module):
        raise ConfigError(f"{name} made {type(encoder).__name__}: it must make a torch.nn.Module")
    with torch.no_grad():
        features = encoder(example)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.is_floating_point():
        given = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"{name} gave {given} for {example.dtype} {list(example.shape)}: it must give floats [batch, features]"
        )
    return encoder


class Flatten(nn.Module):
    """Numbers or bits [B, (stack,) ...] to float32 [B, features].

    Args:
        leaf: which it encodes.
        scaled: whether numbers are scaled from their bounds to [-1, 1].
        clip: of numbers that are normalised, to (x - mean) * scale within [-clip, clip], by the buffers
            `running_mean` and `running_scale`, float32 [numbers of a frame]. None: they are not.
    """

    def __init__(self, leaf: Leaf, scaled: bool, clip: float | None = None) -> None:
        super().__init__()
        self.clip, self.stack = clip, leaf.stack
        if clip is not None:
            self.running_mean: Tensor
            self.running_scale: Tensor
            self.register_buffer(RUNNING_MEAN, torch.zeros(math.prod(leaf.shape)))
            self.register_buffer(RUNNING_SCALE, torch.ones(math.prod(leaf.shape)))
        self.scaled = scaled and bool(leaf.low)
        if self.scaled:
            low, high = torch.tensor(leaf.low), torch.tensor(leaf.high)
            self.scale: Tensor
            self.offset: Tensor
            self.register_buffer("scale", (2 / (high - low)).repeat(leaf.stack), persistent=False)
            self.register_buffer("offset", (-(high + low) / (high - low)).repeat(leaf.stack), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers or bits [B, (stack,) ...] to float32 [B, features]."""
        x = x.flatten(1).float()
        if self.clip is not None:
            x = (x.unflatten(1, (self.stack, -1)) - self.running_mean) * self.running_scale
            return x.clamp(-self.clip, self.clip).flatten(1)
        return x * self.scale + self.offset if self.scaled else x


class OneHot(nn.Module):
    """Categories int64 [B, ...] to float32 [B, sum of nvec]."""

    def __init__(self, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.offsets: Tensor
        offsets = torch.tensor([0, *nvec[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets, persistent=False)
        self.width = sum(nvec)

    def forward(self, x: Tensor) -> Tensor:
        """Categories int64 [B, ...] to float32 [B, sum of nvec]."""
        index = x.flatten(1) + self.offsets
        zeros = torch.zeros(index.shape[0], self.width, device=x.device)
        return zeros.scatter(1, index, 1.0)


class Image(nn.Module):
    """Convolutions over an image leaf, whose frame stack becomes channels.

    uint8 is scaled to [0, 1], or, with `scaled`, numbers of any type from their bounds to [-1, 1].
    """

    def __init__(self, leaf: Leaf, cnn: str, channels_last: bool, scaled: bool = False) -> None:
        super().__init__()
        self.axes, self.stack = leaf.axes, leaf.stack
        self.scale: float | None = 1 / 255 if leaf.dtype == "uint8" else None
        self.offset = 0.0
        if scaled and leaf.low:
            width = leaf.high[0] - leaf.low[0]
            self.scale, self.offset = 2 / width, -(leaf.high[0] + leaf.low[0]) / width
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        sizes = dict(zip(leaf.axes, leaf.shape, strict=True))
        channels = sizes.get("c", 1) * leaf.stack
        name = fitting_cnn(sizes["h"], sizes["w"]) if cnn == "auto" else cnn
        self.convolutions = registered(CNNS, name)(channels)
        self.convolutions.to(memory_format=self.format)  # type: ignore[call-overload]  # missing in torch's stubs

    def forward(self, x: Tensor) -> Tensor:
        """Frames [B, (stack,) ...] to float32 [B, features]."""
        if self.axes == "hw" and self.stack == 1:
            x = x.unsqueeze(1)
        elif self.axes == "hwc":
            x = x.movedim(-1, -3)
        if self.axes != "hw" and self.stack > 1:
            x = x.flatten(1, 2)
        # Converted and scaled in one pass, then brought into the memory format: torch takes several times as long to
        # convert bytes directly into another memory format.
        x = x.float() if self.scale is None else x * self.scale
        x = (x + self.offset if self.offset else x).contiguous(memory_format=self.format)
        if not isinstance(self.convolutions, nn.Sequential):  # a user's own
            return self.convolutions(x).contiguous().flatten(1)
        *parts, activation = self.convolutions
        for part in parts:
            x = part(x)
        # Made contiguous for the linear layers before the last activation, not after it: there its backward would get a
        # gradient of another memory format than its result, at eight times the cost (7 % of a DQN update on MinAtar).
        return activation(x.contiguous()).flatten(1)


def let_stack(network: nn.Module) -> None:
    """Let convolutions use the contiguous memory format, the only one under vmap."""
    for part in network.modules():
        if isinstance(part, Image):
            part.format = torch.contiguous_format


def nature(channels: int) -> nn.Sequential:
    """Mnih et al. 2015, Methods: three convolutions for 84 x 84 frames."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()
    )


def efficient(channels: int) -> nn.Sequential:
    """Van Hasselt et al. 2019 (data-efficient Rainbow), appendix: two convolutions, a seventh of Nature's work."""
    return nn.Sequential(nn.Conv2d(channels, 32, 5, 5), nn.ReLU(), nn.Conv2d(32, 64, 5, 5), nn.ReLU())


def small(channels: int) -> nn.Sequential:
    """Young and Tian 2019 (MinAtar), section 4: one convolution of 16 filters 3 x 3 for small grids."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3, 1), nn.ReLU())


def fitting_cnn(height: int, width: int) -> str:
    """Name of the default CNN for frames of this size."""
    return "nature" if min(height, width) >= 36 else "small"
