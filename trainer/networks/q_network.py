"""Networks: any observation of the environment spec in, one value for each action out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.config.sections import AlgorithmConfig, ConfigError
from trainer.envs import EnvSpec, Leaf

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}


class Flatten(nn.Module):
    """Numbers or bits [B, (stack,) ...] to float32 [B, features]; with `scaled`, from their bounds to [-1, 1]."""

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
        self.convolutions = CNNS[cnn if cnn != "auto" else _fitting_cnn(sizes["h"], sizes["w"])](channels)
        self.convolutions.to(memory_format=self.format)  # type: ignore[call-overload]  # missing in torch's stubs

    def forward(self, x: Tensor) -> Tensor:
        if self.axes == "hw" and self.stack == 1:
            x = x.unsqueeze(1)
        elif self.axes == "hwc":
            x = x.movedim(-1, -3)
        if self.axes != "hw" and self.stack > 1:
            x = x.flatten(1, 2)
        # Converted and scaled in one pass, then laid out once for all convolutions that see it: torch's conversion of
        # bytes straight into another memory format takes several times as long as both.
        x = x.float() if self.scale is None else x * self.scale
        x = (x + self.offset if self.offset else x).contiguous(memory_format=self.format)
        *parts, activation = self.convolutions
        for part in parts:
            x = part(x)
        # Laid out for the linear layers before the last activation: behind it, its backward would meet a gradient that
        # lies otherwise than its result, which costs eight times as much (7 % of a DQN update on MinAtar).
        return activation(x.contiguous()).flatten(1)


def let_stack(network: nn.Module) -> None:
    """Have convolutions take what they see as it lies: under vmap there is no other memory format."""
    for part in network.modules():
        if isinstance(part, _Image):
            part.format = torch.contiguous_format


def _nature(channels: int) -> nn.Sequential:
    """Mnih et al. 2015, Methods: three convolutions for 84 x 84 frames."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()
    )


def _efficient(channels: int) -> nn.Sequential:
    """Van Hasselt et al. 2019 (data-efficient Rainbow), appendix: two convolutions, a seventh of Nature's work."""
    return nn.Sequential(nn.Conv2d(channels, 32, 5, 5), nn.ReLU(), nn.Conv2d(32, 64, 5, 5), nn.ReLU())


def _small(channels: int) -> nn.Sequential:
    """Young and Tian 2019 (MinAtar), section 4: one convolution of 16 filters 3 x 3 for small grids."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3, 1), nn.ReLU())


CNNS = {"nature": _nature, "efficient": _efficient, "small": _small}


def _fitting_cnn(height: int, width: int) -> str:
    return "nature" if min(height, width) >= 36 else "small"


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x weight^T + bias`: [..., I], [O, I] and [O] to [..., O], as torch's linear.

    On a CPU a batch of few rows and many columns is multiplied from the other side, which the library does in half
    (AVX-512) to five sixths (AVX2) of the time; with AVX-512 that is 11 % of a DQN update on MinAtar, 4 % with Nature's
    convolutions. Below some 16 rows it has a fast way of its own, and above an eighth of the columns nothing is gained.
    """
    if x.device.type == "cpu" and x.ndim == 2 and 16 <= x.shape[0] <= x.shape[1] // 8:
        return torch.addmm(bias[:, None], weight, x.t()).t()
    return nn.functional.linear(x, weight, bias)


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry factorised Gaussian noise (Fortunato et al. 2018, section 3, eq. 9 to 11).

    `y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out)`, with `f(e) = sign(e) sqrt(|e|)`.

    TorchRL's layer computes the same, but keeps the noise in buffers: they would travel to the workers with every
    version of the weights, doubling it, and a recorded update would see one noise for ever. Here the network gives it
    with each call.

    Args:
        inputs: I.
        outputs: O.
        sigma: initial noise, over sqrt(I).
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.inputs, self.noise_size = inputs, inputs + outputs
        bound = 1 / math.sqrt(inputs)
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, x: Tensor, factors: Tensor | None = None) -> Tensor:
        """[..., I] to [..., O]; `factors` are f(e) [I + O] of standard normal e, None: the mean weights."""
        if factors is None:
            return dense(x, self.weight_mu, self.bias_mu)
        e_in, e_out = factors[: self.inputs], factors[self.inputs :]
        # A pass over the weights takes about a fifth of their product with a batch of 32; addcmul saves one.
        weight = torch.addcmul(self.weight_mu, self.weight_sigma * e_out[:, None], e_in)
        return dense(x, weight, torch.addcmul(self.bias_mu, self.bias_sigma, e_out))


class MLP(nn.Module):
    """Linear layers with an activation between them, and behind the last one if `ends_active`.

    Args:
        sizes: widths, the input's first.
        activation: one of `ACTIVATIONS`.
        sigma: of noisy layers; None: plain ones.
        ends_active: an activation behind the last layer too.
    """

    def __init__(self, sizes: list[int], activation: str, sigma: float | None, ends_active: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(a, b) if sigma is None else NoisyLinear(a, b, sigma) for a, b in itertools.pairwise(sizes)
        )
        self.activations = nn.ModuleList(
            ACTIVATIONS[activation]() for _ in range(len(self.layers) - (0 if ends_active else 1))
        )

    def forward(self, x: Tensor, factors: Iterator[Tensor]) -> Tensor:
        """[..., sizes[0]] to [..., sizes[-1]]; each noisy layer takes the next of `factors`, if there is one."""
        for i, layer in enumerate(self.layers):
            if isinstance(layer, nn.Linear):
                x = dense(x, layer.weight, layer.bias)
            else:
                x = layer(x, next(factors, None))
            if i < len(self.activations):
                x = self.activations[i](x)
        return x


class QNetwork(nn.Module):
    """Action values of an observation, or K numbers for each action from which they follow.

    Each leaf has its encoder (numbers are flattened, categories one-hot, images convolved), an MLP follows. Dueling
    (Wang et al. 2016, eq. 9): two of its last hidden layer, whose outputs are V and A, and `Q = V + A - mean A`.

    Args:
        spec: the environment.
        config: the algorithm's section.
        channels_last: memory format of convolutions.
        outputs: K, numbers for each action; 1: its value.
        values: K numbers to a value, [B, A, K] to [B, A]; None: their mean.
        fractions: number of quantile fractions that acting asks for, which makes the network that of IQN (Dabney et
            al. 2018a, eq. 4 and section 3.1): K numbers at K given fractions in place of fixed ones.

    Raises:
        ConfigError: observations are to be scaled, and have no bounds.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: AlgorithmConfig,
        channels_last: bool = True,
        outputs: int = 1,
        values: nn.Module | None = None,
        fractions: int | None = None,
    ) -> None:
        super().__init__()
        if config.scale_observations and not any(leaf.low for leaf in spec.leaves):
            raise ConfigError(
                f"algorithm.scale_observations=true scales numbers with finite bounds, and {spec.id} declares none: "
                "leave it out, or declare them in its observation space"
            )
        encoders: list[nn.Module] = []
        for leaf in spec.leaves:
            if leaf.kind == "image":
                encoders.append(_Image(leaf, config.cnn, channels_last, config.scale_observations))
            elif leaf.kind == "discrete":
                encoders.append(OneHot(leaf.nvec))
            else:
                encoders.append(Flatten(leaf, config.scale_observations))
        self.encoders = nn.ModuleList(encoders)
        with torch.no_grad():
            width = sum(
                encoder(torch.zeros(1, *leaf.seen_shape, dtype=getattr(torch, leaf.dtype))).shape[1]
                for encoder, leaf in zip(encoders, spec.leaves, strict=True)
            )
        sigma = config.noisy_sigma if config.noisy else None
        widths = [width, *config.hidden_sizes]
        # Two heads, and quantile fractions, join in before the last hidden layer.
        cut = max(0, len(widths) - 2) if config.dueling or fractions is not None else 0
        self.trunk = MLP(widths[: cut + 1], config.activation, sigma, ends_active=True) if cut else None
        self.embedding: FractionEmbedding | None = None
        if fractions is not None:
            self.embedding = FractionEmbedding(widths[cut], config.fraction_cosines)
            acting = (torch.arange(fractions) + 0.5) / fractions * config.risk_level
            self.acting_fractions: Tensor
            self.register_buffer("acting_fractions", acting, persistent=False)
        self.num_actions, self.outputs = spec.num_actions, outputs
        self.head = MLP([*widths[cut:], spec.num_actions * outputs], config.activation, sigma)
        self.value_head = MLP([*widths[cut:], outputs], config.activation, sigma) if config.dueling else None
        self.values = values
        layers = [module for module in self.modules() if isinstance(module, NoisyLinear)]
        self._noise_sizes = [layer.noise_size for layer in layers]
        self.noise_size = sum(self._noise_sizes)

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Leaves in the spec's order, [B, ...] each; returns float32 [B, num_actions], the values to act by.

        Args:
            leaves: what is seen.
            noise: standard normal [noise_size]; None: drawn anew while training, else the mean weights act.
        """
        if self.embedding is not None:
            return self.quantiles(*leaves, fractions=self.acting_fractions, noise=noise).mean(-1)
        numbers = self.numbers(*leaves, noise=noise)
        if self.values is not None:
            return self.values(numbers)
        return numbers.squeeze(-1) if self.outputs == 1 else numbers.mean(-1)

    def numbers(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """The K numbers of each action, float32 [B, num_actions, K]."""
        factors = self._factors(noise, leaves[0].device)
        x = self._features(leaves, factors)
        advantage = self.head(x, factors).unflatten(-1, (self.num_actions, self.outputs))
        if self.value_head is None:
            return advantage
        return self.value_head(x, factors).unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    def quantiles(self, *leaves: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """IQN: quantiles float32 [B, num_actions, K] of the return at `fractions`, float32 [K] or [B, K]."""
        assert self.embedding is not None
        factors = self._factors(noise, leaves[0].device)
        x = self._features(leaves, factors).unsqueeze(1) * self.embedding(fractions)  # [B, K, features]
        advantage = self.head(x, factors)
        if self.value_head is not None:
            advantage = self.value_head(x, factors) + advantage - advantage.mean(-1, keepdim=True)
        return advantage.transpose(1, 2)

    @torch.no_grad()
    def shift(self, numbers: Tensor) -> None:
        """Add `numbers` [K] to those of every action, by the bias of the last layer; of dueling heads V's."""
        head = self.head if self.value_head is None else self.value_head
        bias = head.layers[-1].get_parameter("bias" if isinstance(head.layers[-1], nn.Linear) else "bias_mu")
        bias.add_(numbers.repeat(len(bias) // len(numbers)))

    def _features(self, leaves: tuple[Tensor, ...], factors: Iterator[Tensor]) -> Tensor:
        encoded = [encoder(leaf) for encoder, leaf in zip(self.encoders, leaves, strict=True)]
        x = encoded[0] if len(encoded) == 1 else torch.cat(encoded, 1)
        return x if self.trunk is None else self.trunk(x, factors)

    def _factors(self, noise: Tensor | None, device: torch.device) -> Iterator[Tensor]:
        """f(e) of each noisy layer in turn, taken of all noise at once."""
        if not self.noise_size or (noise is None and not self.training):
            return iter(())
        noise = torch.randn(self.noise_size, device=device) if noise is None else noise
        return iter((noise.sign() * noise.abs().sqrt()).split(self._noise_sizes))


class FractionEmbedding(nn.Module):
    """`relu(linear(cos(pi i tau), i = 0 .. C - 1))` of quantile fractions tau (Dabney et al. 2018a, eq. 4).

    Args:
        width: of the features that it is multiplied with.
        cosines: C.
    """

    def __init__(self, width: int, cosines: int) -> None:
        super().__init__()
        self.linear = nn.Linear(cosines, width)
        self.frequencies: Tensor
        self.register_buffer("frequencies", math.pi * torch.arange(cosines).float(), persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        """[..., K] to [..., K, width]."""
        return torch.relu(self.linear(torch.cos(fractions.unsqueeze(-1) * self.frequencies)))


def parameter_count(module: nn.Module) -> int:
    """Number of trained values."""
    return sum(math.prod(p.shape) for p in module.parameters())
