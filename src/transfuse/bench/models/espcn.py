"""Super-resolution in the manner of ESPCN (Shi et al. 2016): pixels are shuffled at the end.

The layer before the shuffle is a transposed convolution of stride 1: a convolution with its kernel
mirrored, as decoders that are built of transposed convolutions throughout have it.
"""

import torch
from torch import Tensor, nn


class ESPCN(nn.Module):
    def __init__(self, scale: int = 3, colours: int = 1, features: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(colours, features, 5, padding=2)
        self.conv2 = nn.Conv2d(features, features // 2, 3, padding=1)
        self.deconv = nn.ConvTranspose2d(features // 2, colours * scale**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        x = torch.tanh(self.conv2(x))
        return self.shuffle(self.deconv(x)).clamp(0, 1)


def small() -> ESPCN:
    return ESPCN(features=8)
