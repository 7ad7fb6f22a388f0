"""The decoder of VQ-VAE (van den Oord et al. 2017): chosen codes become an image."""

import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Decoder(nn.Module):
    """Residual blocks, then two transposed convolutions, four times the size."""

    def __init__(self, codes: int = 64, channels: int = 128, hidden: int = 32) -> None:
        super().__init__()
        self.conv = nn.Conv2d(codes, channels, 3, padding=1)
        self.residual = nn.ModuleList(Residual(channels, hidden) for _ in range(2))
        self.up1 = nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(channels // 2, 3, 4, stride=2, padding=1)

    def forward(self, quantized: Tensor) -> Tensor:
        x = self.conv(quantized)
        for block in self.residual:
            x = block(x)
        x = F.relu(x)
        x = F.relu(self.up1(x))
        return self.up2(x)


def small() -> Decoder:
    return Decoder(codes=4, channels=8, hidden=4)
