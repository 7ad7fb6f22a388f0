"""FSRCNN (Dong et al. 2016): super-resolution whose last layer is a transposed convolution."""

from torch import Tensor, nn


class FSRCNN(nn.Module):
    """Features, fewer channels, mapping, more channels, and one 9x9 transposed convolution."""

    def __init__(self, scale: int = 3, d: int = 56, s: int = 12, m: int = 4) -> None:
        super().__init__()
        self.first_part = nn.Sequential(nn.Conv2d(1, d, 5, padding=2), nn.PReLU(d))
        mapping: list[nn.Module] = [nn.Conv2d(d, s, 1), nn.PReLU(s)]
        for _ in range(m):
            mapping += [nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s)]
        mapping += [nn.Conv2d(s, d, 1), nn.PReLU(d)]
        self.mid_part = nn.Sequential(*mapping)
        self.last_part = nn.ConvTranspose2d(
            d, 1, 9, stride=scale, padding=4, output_padding=scale - 1
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first_part(x)
        x = self.mid_part(x)
        return self.last_part(x)


def small() -> FSRCNN:
    return FSRCNN(d=6, s=4, m=2)
