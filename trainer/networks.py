"""Networks: any observation of the environment spec in, one value for each action out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from envs import EnvSpec, Leaf

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}


class Flatten(nn.Module):
    """Numbers or bits [B, (stack,) ...] to float32 [B, features]; with ``scaled``, from their bounds to [-1, 1]."""

    def __init__(self, leaf: Leaf, scaled: bool) -> None:
        super().__init__()
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


class _Image(nn.Module):
    """Convolutions over an image leaf; uint8 is scaled to [0, 1], a frame stack becomes channels."""

    def __init__(self, leaf: Leaf, cnn: str, channels_last: bool) -> None:
        super().__init__()
        self.axes, self.stack = leaf.axes, leaf.stack
        self.scale = 1 / 255 if leaf.dtype == "uint8" else 1.0
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        sizes = dict(zip(leaf.axes, leaf.shape, strict=True))
        channels = sizes.get("c", 1) * leaf.stack
        self.convolutions = CNNS[cnn if cnn != "auto" else _fitting_cnn(sizes["h"], sizes["w"])](channels)
        self.convolutions.to(memory_format=self.format)  # type: ignore[call-overload]  # missing in torch's stubs

    def forward(self, x: Tensor) -> Tensor:
        if self.axes == "hw" and self.stack == 1:
            x = x.unsqueeze(1)
        elif self.axes == "hwc":
            x = x.movedim(-1, -3)
        if self.axes != "hw" and self.stack > 1:
            x = x.flatten(1, 2)
        # The conversion to float writes the convolutions' memory format in the same pass.
        x = x.to(torch.float32, memory_format=self.format) * self.scale
        return self.convolutions(x).flatten(1)


def _nature(channels: int) -> nn.Sequential:
    """Mnih et al. 2015, Methods: three convolutions for 84 x 84 frames."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()
    )


def _small(channels: int) -> nn.Sequential:
    """Young and Tian 2019 (MinAtar), section 4: one convolution of 16 filters 3 x 3 for small grids."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3, 1), nn.ReLU())


CNNS = {"nature": _nature, "small": _small}


def _fitting_cnn(height: int, width: int) -> str:
    return "nature" if min(height, width) >= 36 else "small"


class QNetwork(nn.Module):
    """Action values of an observation.

    Each leaf has its encoder (numbers are flattened, categories one-hot, images convolved), an MLP follows.

    Args:
        spec: the environment.
        hidden_sizes: widths of the MLP's hidden layers.
        activation: relu, tanh or silu.
        cnn: encoder of images: auto, nature or small.
        channels_last: memory format of convolutions.
        scale_observations: bring numbers with finite bounds to [-1, 1].
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden_sizes: list[int],
        activation: str = "relu",
        cnn: str = "auto",
        channels_last: bool = True,
        scale_observations: bool = False,
    ) -> None:
        super().__init__()
        encoders: list[nn.Module] = []
        for leaf in spec.leaves:
            if leaf.kind == "image":
                encoders.append(_Image(leaf, cnn, channels_last))
            elif leaf.kind == "discrete":
                encoders.append(OneHot(leaf.nvec))
            else:
                encoders.append(Flatten(leaf, scale_observations))
        self.encoders = nn.ModuleList(encoders)
        with torch.no_grad():
            width = sum(
                encoder(torch.zeros(1, *leaf.seen_shape, dtype=getattr(torch, leaf.dtype))).shape[1]
                for encoder, leaf in zip(encoders, spec.leaves, strict=True)
            )
        layers: list[nn.Module] = []
        for size in hidden_sizes:
            layers += [nn.Linear(width, size), ACTIVATIONS[activation]()]
            width = size
        self.head = nn.Sequential(*layers, nn.Linear(width, spec.num_actions))

    def forward(self, *leaves: Tensor) -> Tensor:
        """Leaves in the spec's order, [B, ...] each; returns float32 [B, num_actions]."""
        features = [encoder(leaf) for encoder, leaf in zip(self.encoders, leaves, strict=True)]
        return self.head(features[0] if len(features) == 1 else torch.cat(features, 1))


def parameter_count(module: nn.Module) -> int:
    """Number of trained values."""
    return sum(math.prod(p.shape) for p in module.parameters())
