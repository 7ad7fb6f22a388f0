"""FCN-8s (Long et al. 2015): scores at three scales, upsampled by bilinear filters and added."""

import torch
from torch import Tensor, nn


def bilinear(classes: int, kernel: int, stride: int) -> nn.ConvTranspose2d:
    """Each class by itself, with the weights of bilinear interpolation."""
    up = nn.ConvTranspose2d(classes, classes, kernel, stride, groups=classes, bias=False)
    factor = (kernel + 1) // 2
    centre = factor - 1 if kernel % 2 else factor - 0.5
    line = 1 - (torch.arange(kernel) - centre).abs() / factor
    with torch.no_grad():
        up.weight.copy_(torch.outer(line, line))
    return up


def block(channels: int, width: int, convolutions: int, padding: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for at in range(convolutions):
        layers += [
            nn.Conv2d(channels if at == 0 else width, width, 3, padding=padding if at == 0 else 1),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.MaxPool2d(2, stride=2, ceil_mode=True))


class FCN8s(nn.Module):
    """On VGG-16, whose classifier runs as convolutions."""

    def __init__(
        self,
        classes: int = 21,
        widths: tuple[int, ...] = (64, 128, 256, 512, 512),
        hidden: int = 4096,
    ) -> None:
        super().__init__()
        # A margin of 100 leaves enough for the 7x7 kernel, however small the image is.
        self.stages = nn.Sequential(
            block(3, widths[0], 2, padding=100),
            block(widths[0], widths[1], 2),
            block(widths[1], widths[2], 3),
        )
        self.stage4 = block(widths[2], widths[3], 3)
        self.stage5 = block(widths[3], widths[4], 3)
        self.classifier = nn.Sequential(
            nn.Conv2d(widths[4], hidden, 7),
            nn.ReLU(inplace=True),
            nn.Dropout2d(),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Dropout2d(),
        )
        self.score_fr = nn.Conv2d(hidden, classes, 1)
        self.score_pool3 = nn.Conv2d(widths[2], classes, 1)
        self.score_pool4 = nn.Conv2d(widths[3], classes, 1)
        self.upscore2 = bilinear(classes, 4, 2)
        self.upscore_pool4 = bilinear(classes, 4, 2)
        self.upscore8 = bilinear(classes, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        pool3 = self.stages(x)
        pool4 = self.stage4(pool3)
        scores = self.score_fr(self.classifier(self.stage5(pool4)))

        up = self.upscore2(scores)
        skip = self.score_pool4(pool4)
        skip = skip[:, :, 5 : 5 + up.shape[2], 5 : 5 + up.shape[3]]
        up = self.upscore_pool4(up + skip)
        skip = self.score_pool3(pool3)
        skip = skip[:, :, 9 : 9 + up.shape[2], 9 : 9 + up.shape[3]]
        up = self.upscore8(up + skip)
        return up[:, :, 31 : 31 + x.shape[2], 31 : 31 + x.shape[3]].contiguous()


def small() -> FCN8s:
    return FCN8s(classes=3, widths=(2, 2, 4, 4, 4), hidden=6)
