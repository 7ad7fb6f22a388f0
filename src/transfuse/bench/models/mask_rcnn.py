"""The mask head of Mask R-CNN (He et al. 2017): a mask of 28x28 for each class and region."""

from torch import Tensor, nn
from torch.nn import functional as F


class MaskHead(nn.Module):
    """Four convolutions, one transposed convolution, one score for each class."""

    def __init__(self, channels: int = 256, classes: int = 91) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.deconv = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.predictor = nn.Conv2d(channels, classes, 1)

    def forward(self, regions: Tensor) -> Tensor:
        x = regions
        for conv in self.convs:
            x = F.relu(conv(x))
        x = F.relu(self.deconv(x))
        return self.predictor(x)


def small() -> MaskHead:
    return MaskHead(channels=6, classes=5)
