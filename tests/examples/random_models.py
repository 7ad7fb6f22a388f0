"""Models drawn by seed from the vocabulary: sequential, residual and U-shaped, of rank 1 to 3."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
AVERAGE = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
MAXIMUM = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
GEOMETRIES = ((2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1))
"""Kernel, stride, padding, output padding: each makes twice the size."""


class PerChannel(nn.Module):
    """What a user writes with a parameter for each channel, as an operator or in place."""

    def __init__(self, channels: int, rank: int, form: str) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.rand(1, channels, *[1] * rank) + 0.5)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "add":
            return x + self.value
        if self.form == "multiply":
            return self.value * x
        if self.form == "subtract":
            return self.value - x
        if self.form == "in place":
            x += self.value
            return x
        return x + torch.sin(self.value * x) ** 2 / self.value  # snake


class Function(nn.Module):
    """A function of torch's, or free code, as a step."""

    def __init__(self, apply: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_to = apply

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(x)


class Functional(nn.Module):
    """A transposed convolution called as a function, its weight a parameter."""

    def __init__(self, rank: int, channels: int, width: int, geometry: tuple[int, ...]) -> None:
        super().__init__()
        kernel, self.stride, self.padding, self.more = geometry
        self.rank = rank
        self.weight = nn.Parameter(torch.randn(channels, width, *[kernel] * rank) * 0.3)
        self.bias = nn.Parameter(torch.randn(width) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        given = (x, self.weight, self.bias, self.stride, self.padding)
        if self.rank == 1:
            return F.conv_transpose1d(*given, output_padding=self.more)
        if self.rank == 2:
            return F.conv_transpose2d(*given, output_padding=self.more)
        return F.conv_transpose3d(*given, output_padding=self.more)


def scaled_in_place(x: Tensor) -> Tensor:
    return x.mul_(0.5)


def shifted_in_place(x: Tensor) -> Tensor:
    x -= 0.25
    return x


# What must see its own result again for its gradient may not be written over.
KEEPS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    F.relu,
    torch.Tensor.sigmoid,
    lambda x: F.softmax(x, 1),
    lambda x: x.exp().clamp(max=20.0),
    F.elu,
)
LEAVES: tuple[Callable[[Tensor], Tensor], ...] = (
    F.gelu,
    F.silu,
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: torch.clamp(x, -1.0, 1.5),
    lambda x: x.clamp(min=-0.7),
    lambda x: 0.5 * x,
    lambda x: 2 - x,
    lambda x: -x / 3,
    lambda x: x * x,
    lambda x: abs(x) + 1,
    lambda x: x * torch.sigmoid(x),
    lambda x: x + torch.tanh(x),
    lambda x: x * F.softplus(x).tanh(),
    lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
)
IN_PLACE: tuple[Callable[[Tensor], Tensor], ...] = (scaled_in_place, shifted_in_place)
OUTSIDE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.cumsum(-1) * 0.1,
    lambda x: x.flip(1),
    lambda x: x.roll(1, -1),
)
"""Of no vocabulary."""


def step(random: Random, channels: int, rank: int, writable: bool) -> tuple[nn.Module, bool]:
    """Something that leaves the shape alone, and whether its result may be written over."""
    kind = random.choices(
        ("module", "norm", "keeps", "leaves", "channel", "in place", "dropout", "outside"),
        (4, 4, 3, 5, 3, 3, 1, 1),
    )[0]
    if kind == "in place" and not writable:
        kind = "leaves"
    if kind == "module":
        forgets = random.choice((nn.GELU, nn.SiLU, nn.Softplus, nn.Hardswish, nn.Mish))()
        keeps = random.choice((nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU))()
        inplace = nn.ReLU(inplace=True) if writable else nn.LeakyReLU(0.1)
        made = random.choice((forgets, keeps, inplace, nn.PReLU(channels), nn.Identity()))
        return made, made is forgets
    if kind == "norm":
        norms = (
            BATCH[rank](channels),
            INSTANCE[rank](channels, affine=True),
            nn.GroupNorm(2, channels),
            nn.GroupNorm(1, channels),
        )
        return random.choice(norms), True
    if kind == "channel":
        forms = ("add", "multiply", "subtract", "snake", *(["in place"] if writable else []))
        return PerChannel(channels, rank, random.choice(forms)), True
    if kind == "dropout":
        return nn.Dropout(0.3), writable
    if kind == "in place":
        return Function(random.choice(IN_PLACE)), True
    table = {"keeps": KEEPS, "leaves": LEAVES, "outside": OUTSIDE}[kind]
    return Function(random.choice(table)), kind == "outside"


def steps(random: Random, channels: int, rank: int, most: int, writable: bool) -> nn.Sequential:
    made = []
    for _ in range(random.randint(0, most)):
        module, writable = step(random, channels, rank, writable)
        made.append(module)
    return nn.Sequential(*made)


def up(random: Random, rank: int, channels: int, width: int) -> nn.Module:
    geometry = random.choice(GEOMETRIES)
    if random.random() < 0.3:
        return Functional(rank, channels, width, geometry)
    kernel, stride, padding, more = geometry
    return TRANSPOSED[rank](
        channels, width, kernel, stride, padding, more, bias=random.random() < 0.7
    )


class Level(nn.Module):
    """Steps, a transposed convolution, steps."""

    def __init__(self, random: Random, rank: int, channels: int, width: int) -> None:
        super().__init__()
        self.before = steps(random, channels, rank, 2, writable=False)
        self.up = up(random, rank, channels, width)
        self.after = steps(random, width, rank, 4, writable=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.up(self.before(x)))


class Sequence(nn.Module):
    """Levels in turn, with a pool between some."""

    def __init__(self, random: Random, rank: int) -> None:
        super().__init__()
        widths = [random.choice((2, 4, 6)) for _ in range(random.randint(2, 3))]
        layers: list[nn.Module] = []
        for channels, width in pairwise(widths):
            layers.append(Level(random, rank, channels, width))
            if random.random() < 0.5:
                layers.append(random.choice((AVERAGE, MAXIMUM))[rank](2))
        self.channels, self.layers = widths[0], nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Residual(nn.Module):
    """The convolution's result is used again further on, or met by another branch."""

    def __init__(self, random: Random, rank: int) -> None:
        super().__init__()
        self.channels, width = random.choice((2, 4)), random.choice((2, 4))
        self.before = steps(random, self.channels, rank, 2, writable=False)
        self.up = up(random, rank, self.channels, width)
        self.inner = steps(random, width, rank, 3, writable=False)
        self.other = CONV[rank](width, width, 1)
        self.shortcut = up(random, rank, self.channels, width)
        self.form = random.choice(("itself", "branch", "shortcut", "gate", "in place"))
        self.after = steps(random, width, rank, 2, writable=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.before(x))
        if self.form == "itself":
            z = self.inner(y) + y
        elif self.form == "branch":
            z = F.relu(y + self.inner(self.other(y)))
        elif self.form == "shortcut":
            z = self.inner(y) + self.shortcut(x)
        elif self.form == "gate":
            z = self.inner(y) * torch.sigmoid(self.shortcut(x))
        else:
            z = self.shortcut(x) * 2
            z += self.inner(y)
        return self.after(z)


class UShaped(nn.Module):
    """Down by strides, up by transposed convolutions, each beside or added to its skip."""

    def __init__(self, random: Random, rank: int) -> None:
        super().__init__()
        widths = [random.choice((2, 4)) for _ in range(random.randint(2, 3))]
        self.channels = 3
        self.first = CONV[rank](3, widths[0], 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(CONV[rank](a, b, 3, 2, 1) for a, b in pairs)
        self.up = nn.ModuleList(Level(random, rank, b, a) for a, b in reversed(pairs))
        self.joins = [random.choice(("skip first", "skip last", "add")) for _ in pairs]
        self.conv = nn.ModuleList(
            CONV[rank](a if join == "add" else 2 * a, a, 3, padding=1)
            for (a, _), join in zip(reversed(pairs), self.joins, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = F.leaky_relu(down(x))
        for up, join, conv in zip(self.up, self.joins, self.conv, strict=True):
            x, skip = up(x), skips.pop()
            if x.shape[2:] != skip.shape[2:]:
                pad: list[int] = []
                for axis in range(x.dim() - 1, 1, -1):
                    pad += [0, skip.shape[axis] - x.shape[axis]]
                x = F.pad(x, pad)
            if join == "add":
                x = x + skip
            else:
                x = torch.cat([skip, x] if join == "skip first" else [x, skip], dim=1)
            x = conv(x)
        return x


FORMS = (Sequence, Residual, UShaped)


def draw(seed: int) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    """A model by seed, as what makes it anew with the same weights, and its input's shape."""
    random = Random(seed)
    rank, form = random.choice((1, 2, 2, 3)), FORMS[seed % len(FORMS)]
    sizes = [random.randint(5, 5 if rank == 3 else 7) for _ in range(rank)]
    structure = random.random()

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return form(Random(structure), rank)

    return make, (random.randint(1, 3), make().channels, *sizes)
