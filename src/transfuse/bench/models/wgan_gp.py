"""WGAN-GP (Gulrajani et al. 2017): the critic's gradient is held near 1, a second-order loss."""

import torch
from torch import Tensor, nn


class Generator(nn.Module):
    """A linear layer makes 4x4 positions, three transposed convolutions make 32x32."""

    def __init__(self, noise: int = 128, features: int = 128, colours: int = 3) -> None:
        super().__init__()
        self.features = features
        self.start = nn.Sequential(
            nn.Linear(noise, 4 * 4 * 4 * features),
            nn.BatchNorm1d(4 * 4 * 4 * features),
            nn.ReLU(True),
        )
        self.block1 = nn.Sequential(
            nn.ConvTranspose2d(4 * features, 2 * features, 2, stride=2),
            nn.BatchNorm2d(2 * features),
            nn.ReLU(True),
        )
        self.block2 = nn.Sequential(
            nn.ConvTranspose2d(2 * features, features, 2, stride=2),
            nn.BatchNorm2d(features),
            nn.ReLU(True),
        )
        self.end = nn.ConvTranspose2d(features, colours, 2, stride=2)

    def forward(self, noise: Tensor) -> Tensor:
        x = self.start(noise).view(-1, 4 * self.features, 4, 4)
        x = self.block2(self.block1(x))
        return torch.tanh(self.end(x))


class Critic(nn.Module):
    """Three convolutions of stride 2 and one score; no norms, as the penalty asks."""

    def __init__(self, features: int = 128, colours: int = 3) -> None:
        super().__init__()
        self.features = features
        self.main = nn.Sequential(
            nn.Conv2d(colours, features, 3, 2, padding=1),
            nn.LeakyReLU(),
            nn.Conv2d(features, 2 * features, 3, 2, padding=1),
            nn.LeakyReLU(),
            nn.Conv2d(2 * features, 4 * features, 3, 2, padding=1),
            nn.LeakyReLU(),
        )
        self.score = nn.Linear(4 * 4 * 4 * features, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.score(self.main(image).flatten(1))


class WGAN(nn.Module):
    """The scores of images made from noise: what the generator's step raises."""

    def __init__(self, noise: int = 128, features: int = 128) -> None:
        super().__init__()
        self.generator = Generator(noise, features)
        self.critic = Critic(features)

    def forward(self, noise: Tensor) -> Tensor:
        return self.critic(self.generator(noise))


def gradient_penalty(critic: nn.Module, real: Tensor, fake: Tensor, share: Tensor) -> Tensor:
    """How far the critic's slope is from 1 between real images and made ones.

    ``share``: of each sample, how much of the real image is in it.
    """
    share = share.view(-1, 1, 1, 1)
    between = share * real + (1 - share) * fake
    scores = critic(between)
    [slope] = torch.autograd.grad(scores.sum(), between, create_graph=True)
    return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()


def small() -> WGAN:
    return WGAN(noise=5, features=4)
