"""Convolutional models written out: residual, U-shaped, depthwise, variational, and a diffusion block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor]]


def conv(inside: int, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inside, out, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(out)
    )


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(inside, out, 3, stride), conv(out, out)
        self.short = conv(inside, out, 1, stride) if stride > 1 or inside != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


def resnet18() -> Built:
    """ResNet-18's blocks and widths on 64 x 64 pixels."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inside, width, stride), Residual(width, width, 1)]
        inside = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return nn.Sequential(*layers), {"input": torch.randn(4, 3, 64, 64)}


def mobilenet() -> Built:
    """Inverted depthwise bottlenecks."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.ReLU6()]
    for inside, out, stride in ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        wide = 4 * inside
        layers += [conv(inside, wide, 1), nn.ReLU6(), conv(wide, wide, 3, stride, wide), nn.ReLU6(), conv(wide, out, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)]
    return nn.Sequential(*layers), {"input": torch.randn(4, 3, 96, 96)}


class UNet(nn.Module):
    """Two levels down by pooling, two up by interpolation, joined by `cat`."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 32), (32, 64), (64, 128), (192, 64), (96, 32))
        self.blocks = nn.ModuleList(nn.Sequential(conv(a, b), nn.ReLU(), conv(b, b), nn.ReLU()) for a, b in widths)
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.blocks[0](x)
        two = self.blocks[1](F.max_pool2d(one, 2))
        low = self.blocks[2](F.max_pool2d(two, 2))
        up = self.blocks[3](torch.cat([F.interpolate(low, scale_factor=2.0), two], 1))
        return self.head(self.blocks[4](torch.cat([F.interpolate(up, scale_factor=2.0), one], 1)))


def unet() -> Built:
    """Segmentation of 64 x 64 pixels."""
    return UNet(), {"x": torch.randn(4, 3, 64, 64)}


class Diffusion(nn.Module):
    """A residual block with group norm and an embedding of time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(128, 64)
        self.norms = nn.ModuleList(nn.GroupNorm(8, 64) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.convs[1](F.silu(self.norms[1](hidden)))


def diffusion() -> Built:
    """One block at 32 pixels."""
    return Diffusion(), {"x": torch.randn(8, 64, 32, 32), "time": torch.randn(8, 128)}


def transposed_autoencoder() -> Built:
    """Strided convolutions down, transposed ones up."""
    layers = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*layers), {"input": torch.rand(16, 1, 32, 32)}
