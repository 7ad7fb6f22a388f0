"""The head of a dense prediction transformer (Ranftl et al. 2021), as Depth Anything has it.

Tokens of four layers are put back into their places, each at a scale of its own; the two finest
scales are made by transposed convolutions (k4 s4, k2 s2).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualConvUnit(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(F.relu(x)))) + x


class FeatureFusion(nn.Module):
    """What comes from the coarser scale, with this scale's features added, made larger."""

    def __init__(self, features: int, skips: bool) -> None:
        super().__init__()
        if skips:
            self.unit1 = ResidualConvUnit(features)
        self.unit2 = ResidualConvUnit(features)
        self.out_conv = nn.Conv2d(features, features, 1)

    def forward(
        self, x: Tensor, skip: Tensor | None = None, size: tuple[int, int] | None = None
    ) -> Tensor:
        if skip is not None:
            x = x + self.unit1(skip)
        x = self.unit2(x)
        factor = 2 if size is None else None
        x = F.interpolate(x, size, factor, mode="bilinear", align_corners=True)
        return self.out_conv(x)


class DPTHead(nn.Module):
    """The defaults are those of Depth Anything's base model."""

    def __init__(
        self,
        width: int = 768,
        features: int = 128,
        widths: tuple[int, int, int, int] = (96, 192, 384, 768),
        patch: int = 14,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.projects = nn.ModuleList(nn.Conv2d(width, each, 1) for each in widths)
        self.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(widths[0], widths[0], 4, stride=4),
                nn.ConvTranspose2d(widths[1], widths[1], 2, stride=2),
                nn.Identity(),
                nn.Conv2d(widths[3], widths[3], 3, stride=2, padding=1),
            ]
        )
        self.layers_rn = nn.ModuleList(
            nn.Conv2d(each, features, 3, padding=1, bias=False) for each in widths
        )
        self.fusions = nn.ModuleList(FeatureFusion(features, skips=i < 3) for i in range(4))
        self.output_conv1 = nn.Conv2d(features, features // 2, 3, padding=1)
        depth = nn.Conv2d(32, 1, 1)
        depth.bias = nn.Parameter(torch.ones(1))  # at 0 the last ReLU may let no gradient through
        self.output_conv2 = nn.Sequential(
            nn.Conv2d(features // 2, 32, 3, padding=1), nn.ReLU(True), depth, nn.ReLU(True)
        )

    def forward(self, first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> Tensor:
        """Tokens (batch, side * side, width) of four layers, the first one's first."""
        side = int(first.shape[1] ** 0.5)
        scales = []
        for i, tokens in enumerate((first, second, third, fourth)):
            x = tokens.permute(0, 2, 1).reshape(tokens.shape[0], tokens.shape[-1], side, side)
            x = self.resize_layers[i](self.projects[i](x))
            scales.append(self.layers_rn[i](x))
        path = self.fusions[3](scales[3], size=scales[2].shape[2:])
        path = self.fusions[2](path, scales[2], size=scales[1].shape[2:])
        path = self.fusions[1](path, scales[1], size=scales[0].shape[2:])
        path = self.fusions[0](path, scales[0])
        x = self.output_conv1(path)
        full = (side * self.patch, side * self.patch)
        x = F.interpolate(x, full, mode="bilinear", align_corners=True)
        return self.output_conv2(x)


def small() -> DPTHead:
    return DPTHead(width=6, features=8, widths=(4, 5, 6, 7), patch=4)
