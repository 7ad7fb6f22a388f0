"""The upscaling in the mask decoder of Segment Anything (Kirillov et al. 2023)."""

import torch
from torch import Tensor, nn


class LayerNorm2d(nn.Module):
    """Layer norm over the channels of each position."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class MLP(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class MaskUpscaling(nn.Module):
    """An image's embedding, four times as large, against the vector of each mask's token."""

    def __init__(self, width: int = 256, masks: int = 4) -> None:
        super().__init__()
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(width, width // 4, kernel_size=2, stride=2),
            LayerNorm2d(width // 4),
            nn.GELU(),
            nn.ConvTranspose2d(width // 4, width // 8, kernel_size=2, stride=2),
            nn.GELU(),
        )
        self.hypernetworks = nn.ModuleList(MLP(width, width // 8) for _ in range(masks))

    def forward(self, embedding: Tensor, tokens: Tensor) -> Tensor:
        upscaled = self.output_upscaling(embedding)
        hyper = torch.stack([mlp(tokens[:, i]) for i, mlp in enumerate(self.hypernetworks)], dim=1)
        b, c, h, w = upscaled.shape
        return (hyper @ upscaled.view(b, c, h * w)).view(b, -1, h, w)


def small() -> MaskUpscaling:
    return MaskUpscaling(width=16, masks=3)
