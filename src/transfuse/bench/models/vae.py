"""The decoder of a convolutional VAE (Kingma and Welling 2013), for faces of 64x64."""

from itertools import pairwise

from torch import Tensor, nn


def double(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(channels, out_channels, 3, stride=2, padding=1, output_padding=1),
        nn.BatchNorm2d(out_channels),
        nn.LeakyReLU(),
    )


class Decoder(nn.Module):
    """A linear layer makes 2x2 positions, five transposed convolutions 64x64."""

    def __init__(
        self, latent: int = 128, widths: tuple[int, ...] = (512, 256, 128, 64, 32)
    ) -> None:
        super().__init__()
        self.decoder_input = nn.Linear(latent, widths[0] * 4)
        self.decoder = nn.Sequential(*(double(a, b) for a, b in pairwise(widths)))
        self.final_layer = nn.Sequential(
            *double(widths[-1], widths[-1]),
            nn.Conv2d(widths[-1], 3, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        x = self.decoder_input(z)
        x = x.view(z.shape[0], -1, 2, 2)
        return self.final_layer(self.decoder(x))


def small() -> Decoder:
    return Decoder(latent=5, widths=(12, 8, 6, 4))
