"""StyleGAN2's upsampling layer (Karras et al. 2020): every sample has a kernel of its own.

A style scales the kernel's input channels (modulation), the kernel is brought back to unit length
(demodulation), and one grouped call serves the batch: a group for each sample.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Blur(nn.Module):
    """The binomial filter after upsampling, channel by channel."""

    kernel: Tensor

    def __init__(self, pad: tuple[int, int], gain: float) -> None:
        super().__init__()
        line = torch.tensor([1.0, 3.0, 3.0, 1.0])
        plane = torch.outer(line, line)
        self.register_buffer("kernel", plane / plane.sum() * gain)
        self.pad = pad

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        kernel = self.kernel.expand(channels, 1, 4, 4)
        return F.conv2d(F.pad(x, (*self.pad, *self.pad)), kernel, groups=channels)


class UpsamplingLayer(nn.Module):
    """Modulated transposed convolution, blur, noise, bias and leaky ReLU."""

    def __init__(self, channels: int = 512, out_channels: int = 256, style: int = 512) -> None:
        super().__init__()
        self.scale = (channels * 9) ** -0.5
        self.weight = nn.Parameter(torch.randn(1, out_channels, channels, 3, 3))
        self.style = nn.Linear(style, channels)
        nn.init.ones_(self.style.bias)
        self.blur = Blur(pad=(1, 1), gain=4.0)
        self.noise_strength = nn.Parameter(torch.full([1], 0.1))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        gains = self.style(style).view(batch, 1, channels, 1, 1)
        weight = self.scale * self.weight * gains
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)

        # One group for each sample: the batch lies along the channels.
        x = x.reshape(1, batch * channels, height, width)
        weight = weight.transpose(1, 2).reshape(batch * channels, -1, 3, 3)
        y = F.conv_transpose2d(x, weight, stride=2, groups=batch)
        y = self.blur(y.view(batch, -1, y.shape[2], y.shape[3]))

        y = y + self.noise_strength * noise
        return F.leaky_relu(y + self.bias.view(1, -1, 1, 1), 0.2) * 2**0.5


def small() -> UpsamplingLayer:
    return UpsamplingLayer(channels=6, out_channels=4, style=5)
