"""V-Net (Milletari et al. 2016): a volume down and up, with a residual at every level."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolutions(nn.Module):
    """5x5x5 convolutions with batch norm and ELU, at one size."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv3d(channels, channels, 5, padding=2), nn.BatchNorm3d(channels))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.elu(layer(x), inplace=True)
        return x


class First(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.repeats = width // channels
        self.conv = nn.Conv3d(channels, width, 5, padding=2)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(self.bn(self.conv(x)) + x.repeat(1, self.repeats, 1, 1, 1))


class Down(nn.Module):
    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.down = nn.Conv3d(channels, 2 * channels, 2, stride=2)
        self.bn = nn.BatchNorm3d(2 * channels)
        self.ops = Convolutions(2 * channels, count)

    def forward(self, x: Tensor) -> Tensor:
        down = F.elu(self.bn(self.down(x)))
        return F.elu(self.ops(down) + down)


class Up(nn.Module):
    """Upsampled, joined with the skip, convolved, and added to what was joined."""

    def __init__(self, channels: int, width: int, count: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, width // 2, 2, stride=2)
        self.bn = nn.BatchNorm3d(width // 2)
        self.ops = Convolutions(width, count)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        joined = torch.cat((F.elu(self.bn(self.up(x))), skip), 1)
        return F.elu(self.ops(joined) + joined)


class VNet(nn.Module):
    """The probability of every class at each voxel."""

    def __init__(self, modalities: int = 1, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.first = First(modalities, width)
        self.down1 = Down(width, 1)
        self.down2 = Down(2 * width, 2)
        self.down3 = Down(4 * width, 3)
        self.down4 = Down(8 * width, 2)
        self.up4 = Up(16 * width, 16 * width, 2)
        self.up3 = Up(16 * width, 8 * width, 2)
        self.up2 = Up(8 * width, 4 * width, 1)
        self.up1 = Up(4 * width, 2 * width, 1)
        self.conv = nn.Conv3d(2 * width, classes, 5, padding=2)
        self.bn = nn.BatchNorm3d(classes)
        self.score = nn.Conv3d(classes, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        at1 = self.first(x)
        at2 = self.down1(at1)
        at4 = self.down2(at2)
        at8 = self.down3(at4)
        y = self.up4(self.down4(at8), at8)
        y = self.up3(y, at4)
        y = self.up2(y, at2)
        y = self.up1(y, at1)
        return self.score(F.elu(self.bn(self.conv(y)))).softmax(dim=1)


def small() -> VNet:
    return VNet(width=2)
