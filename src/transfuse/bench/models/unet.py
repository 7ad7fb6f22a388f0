"""U-Net in two dimensions (Ronneberger et al. 2015), with batch norm, as it is used today."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Twice: convolution, batch norm, ReLU."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """Twice the size, then the skip connection beside it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        self.conv = DoubleConv(channels, channels // 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        # Pooling rounds odd sizes down, so that what comes up may be smaller than the skip.
        if x.shape[2:] != skip.shape[2:]:
            rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    """Four levels down, four up, and scores for each class."""

    def __init__(self, colours: int = 3, classes: int = 1, features: int = 64) -> None:
        super().__init__()
        widths = [features * 2**level for level in range(5)]
        self.first = DoubleConv(colours, widths[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width)) for width in widths[:-1]
        )
        self.up = nn.ModuleList(Up(width) for width in reversed(widths[1:]))
        self.classify = nn.Conv2d(features, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up in self.up:
            x = up(x, skips.pop())
        return self.classify(x)


def small() -> UNet:
    return UNet(features=4)
