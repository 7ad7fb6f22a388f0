"""Small models, written as people write them."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def decoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.ConvTranspose2d(6, 3, 4, stride=2, padding=1), nn.Tanh()),
    )


class FreeCode(nn.Module):
    """Functions, methods and operators; a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 3, 3) / 4)
        self.gain = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv_transpose2d(x / 2, self.weight, stride=2)
        y = F.leaky_relu(y * self.gain + self.shift, 0.2)
        return (1 - y.sigmoid()).clamp(min=0.1) ** 2


class Up(nn.Module):
    """A step of a U-Net, which pads by comparing shapes."""

    def __init__(self, ci: int, co: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(ci, co, 2, stride=2)
        self.conv = nn.Sequential(
            nn.Conv2d(2 * co, co, 3, padding=1), nn.BatchNorm2d(co), nn.ReLU()
        )

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        if x.shape[2:] != skip.shape[2:]:
            dy, dx = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.downs = nn.ModuleList([nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)])
        self.ups = nn.ModuleList([Up(12, 6), Up(6, 3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = F.relu(down(F.max_pool2d(x, 2)))
        for up in self.ups:
            x = up(x, skips.pop())
        return x


class Vocoder(nn.Module):
    """A generator like HiFi-GAN's, with either of torch's weight_norms."""

    def __init__(self, norm: Any = nn.utils.parametrizations.weight_norm) -> None:
        super().__init__()
        self.pre = norm(nn.Conv1d(4, 8, 7, padding=3))
        self.ups = nn.ModuleList([
            norm(nn.ConvTranspose1d(8, 4, 8, stride=4, padding=2)),
            norm(nn.ConvTranspose1d(4, 2, 4, stride=2, padding=1)),
        ])  # fmt: skip
        self.blocks = nn.ModuleList([norm(nn.Conv1d(4, 4, 3, padding=1)), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre(x)
        for up, block in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = x + block(x)
        return torch.tanh(x)


class Snake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x) ** 2 / (self.alpha + 1e-9)


class Residual(nn.Module):
    """The result of a convolution is used twice, and once more by what comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 4, 4, stride=2, padding=1)
        self.act = Snake(4)
        self.drop = nn.Dropout(0.3)
        self.mix = nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.up(x)
        z = self.act(y)
        return {"sum": y + self.drop(self.mix(z)), "both": (z, [y, None]), "length": 3}


class Shared(nn.Module):
    """One module called twice, and in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose2d(2, 2, 2, stride=2), nn.BatchNorm2d(2), nn.ELU())

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.up(x))
        for _ in range(2):
            y = self.up(y)[..., ::2, ::2]
        return y


class Optional_(nn.Module):
    """Arguments that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)

    def forward(
        self, x: Tensor, skip: Tensor | None = None, *, scale: float = 1.0, act: str = "relu"
    ) -> Tensor:
        y = self.up(x)
        if skip is not None:
            y = y + skip
        y = torch.relu(y) if act == "relu" else torch.tanh(y)
        return y * scale


class ByData(nn.Module):
    """Control flow by values, around one decoder and inside a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.ConvTranspose2d(2, 2, 2, stride=2), nn.ReLU())
        self.inner = ByDataInside()

    def forward(self, x: Tensor) -> Tensor:
        y = self.outer(x)
        if y.sum() > 0:
            y = -y
        return self.inner(y)


class ByDataInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.up(x))
        return y * 2 if y.mean().item() > 0.5 else y


class Around(nn.Module):
    """A forward that is a graph around one that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.inner = ByDataInside()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(torch.relu(self.first(x))))


class InPlace(nn.Module):
    """Names for the same memory: what is written by one is seen by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 3, 2, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.up(x)
        same = y
        y += 1
        y[:, 0] = 0.5
        y.mul_(2)
        z = same * 3
        return same, z


class Noise(nn.Module):
    """Numbers drawn in each call, not of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.up(x)) + torch.randn(3, 1, dtype=torch.float64)


class Sized(nn.Module):
    """Sizes read, unpacked and calculated with."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        y = self.up(x, output_size=[2 * h + 1, 2 * w + 2])
        y = F.softmax(y, dim=1).view(n, 4, -1)
        return y[..., : math.ceil(h * w / 2)] / len(x)


def weight_normed(module: nn.Module) -> nn.Module:
    """New style, the weight computed by a parametrization."""
    return parametrizations.weight_norm(module)
