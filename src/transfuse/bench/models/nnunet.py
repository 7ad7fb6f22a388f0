"""U-Net in three dimensions as nnU-Net builds it (Isensee et al. 2021).

Strided convolutions down, transposed ones (k2 s2) up, instance norm and leaky ReLU throughout,
a head at every scale while it trains (deep supervision).
"""

import torch
from torch import Tensor, nn


class ConvBlock(nn.Module):
    """Convolution, instance norm, leaky ReLU."""

    def __init__(self, channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3, stride, padding=1)
        self.norm = nn.InstanceNorm3d(out_channels, affine=True)
        self.nonlin = nn.LeakyReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlin(self.norm(self.conv(x)))


def stage(channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        ConvBlock(channels, out_channels, stride), ConvBlock(out_channels, out_channels)
    )


class NNUNet(nn.Module):
    """The result at full size, or, while it trains, at every scale, the largest first."""

    def __init__(
        self,
        modalities: int = 1,
        classes: int = 3,
        widths: tuple[int, ...] = (32, 64, 128, 256, 320, 320),
    ) -> None:
        super().__init__()
        below = (modalities, *widths)
        self.encoder = nn.ModuleList(
            stage(below[level], width, stride=1 if level == 0 else 2)
            for level, width in enumerate(widths)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.transpconvs = nn.ModuleList(
            nn.ConvTranspose3d(deep, wide, 2, stride=2) for deep, wide in pairs
        )
        self.decoder = nn.ModuleList(stage(2 * wide, wide) for _, wide in pairs)
        self.heads = nn.ModuleList(nn.Conv3d(wide, classes, 1) for _, wide in pairs)

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        skips: list[Tensor] = []
        for encode in self.encoder:
            x = encode(x)
            skips.append(x)
        x = skips.pop()
        results = []
        for up, decode, head in zip(self.transpconvs, self.decoder, self.heads, strict=True):
            x = decode(torch.cat((up(x), skips.pop()), dim=1))
            if self.training:
                results.append(head(x))
        return results[::-1] if self.training else self.heads[-1](x)


def small() -> NNUNet:
    return NNUNet(widths=(4, 6, 8))
