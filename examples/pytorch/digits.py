"""Images of digits, made up here so that nothing is downloaded, and a network that reads them."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

#: The rows of the ten digits, five pixels each, as bits.
FONT = [
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
]
SIZE = 16


def digits(count: int, seed: int, noise: float = 0.4) -> TensorDataset:
    """Make noisy digits at random places of a 16 by 16 image, with their labels: the same for the same seed."""
    bits = torch.tensor(FONT).unsqueeze(-1) >> torch.arange(4, -1, -1) & 1
    glyphs = bits.float().repeat_interleave(2, 1).repeat_interleave(2, 2)
    _, height, width = glyphs.shape
    places = torch.zeros(10, SIZE - height + 1, SIZE - width + 1, SIZE, SIZE)
    for top in range(places.shape[1]):
        for left in range(places.shape[2]):
            places[:, top, left, top : top + height, left : left + width] = glyphs
    generator = torch.Generator().manual_seed(seed)
    labels, y, x = (torch.randint(limit, (count,), generator=generator) for limit in places.shape[:3])
    contrast = 0.5 + torch.rand(count, 1, 1, generator=generator)
    images = contrast * places[labels, y, x] + noise * torch.randn(count, SIZE, SIZE, generator=generator)
    return TensorDataset(images.unsqueeze(1), labels)


def network(seed: int = 1, channels: int = 16) -> nn.Module:
    """Build a small convolutional network, with the same weights for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (SIZE // 4) ** 2, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of the images that the model reads right."""
    images, labels = data.tensors
    model.eval()
    right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return float(right)
