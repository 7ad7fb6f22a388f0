"""Pix2Pix's generator (Isola et al. 2017): a U-Net of 256x256, built from the inside out."""

import torch
from torch import Tensor, nn


class SkipBlock(nn.Module):
    """Down, whatever is inside, up; the input beside the result, but at the outermost one."""

    def __init__(
        self,
        outer: int,
        inner: int,
        norm: type[nn.Module],
        inside: nn.Module | None = None,
        colours: int | None = None,
        dropout: bool = False,
    ) -> None:
        super().__init__()
        self.outermost = colours is not None
        bias = norm is nn.InstanceNorm2d
        down = nn.Conv2d(colours or outer, inner, 4, stride=2, padding=1, bias=bias)
        up_from = inner if inside is None else 2 * inner
        if self.outermost:
            up = nn.ConvTranspose2d(up_from, outer, 4, stride=2, padding=1)
            layers = [down, inside, nn.ReLU(True), up, nn.Tanh()]
        else:
            up = nn.ConvTranspose2d(up_from, outer, 4, stride=2, padding=1, bias=bias)
            layers = [nn.LeakyReLU(0.2, True), down]
            if inside is not None:
                layers += [norm(inner), inside]
            layers += [nn.ReLU(True), up, norm(outer)]
            if dropout:
                layers.append(nn.Dropout(0.5))
        self.model = nn.Sequential(*(layer for layer in layers if layer is not None))

    def forward(self, x: Tensor) -> Tensor:
        if self.outermost:
            return self.model(x)
        return torch.cat([x, self.model(x)], 1)


class UnetGenerator(nn.Module):
    """``downs`` halvings: 8 take an image of 256x256 to one position."""

    def __init__(
        self,
        features: int = 64,
        downs: int = 8,
        norm: type[nn.Module] = nn.BatchNorm2d,
        colours: int = 3,
    ) -> None:
        super().__init__()
        wide = 8 * features
        block = SkipBlock(wide, wide, norm)
        for _ in range(downs - 5):
            block = SkipBlock(wide, wide, norm, block, dropout=True)
        for outer, inner in ((4, 8), (2, 4), (1, 2)):
            block = SkipBlock(outer * features, inner * features, norm, block)
        self.model = SkipBlock(colours, features, norm, block, colours=colours)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def small() -> UnetGenerator:
    return UnetGenerator(features=2, downs=6)
