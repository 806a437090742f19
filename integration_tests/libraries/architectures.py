"""Public architectures as they are trained, small: a module that gives the loss of one step, and the step's inputs.

Classifiers are torchvision's; what torchvision does not have is written out after its paper's own code. Weights
are random; dropout and stochastic depth stay on: on the CPU their masks do not depend on the dtype (`bernoulli_` draws
integers), so a float64 copy under the same seed drops the same elements. Sizes keep batch norm from dividing by the
spread of a handful of numbers, and decisions (see `decisions.py`) few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
CLASSES = 10
WORDS = 50


@dataclass(frozen=True)
class Step:
    """One training step: `module(*inputs)` is its loss."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


class Classification(nn.Module):
    """Cross entropy of a classifier's scores, and of those of its auxiliary heads with the papers' weight of 0.3."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.classifier(images)
        if not isinstance(scores, tuple):
            return F.cross_entropy(scores, labels)
        main, *auxiliary = (F.cross_entropy(head, labels) for head in scores)
        return main + 0.3 * sum(auxiliary)


def classification(build: Callable[[], tuple[nn.Module, int]]) -> Step:
    """A step of a classifier on square images."""
    classifier, size = build()
    return Step(Classification(classifier), (torch.randn(BATCH, 3, size, size), torch.arange(BATCH) % CLASSES))


def named(name: str, size: int = 32, **settings: object) -> Callable[[], Step]:
    """A step of a model of torchvision's registry."""

    def build() -> Step:
        from integration_tests.libraries import vision

        return classification(vision.named(name, size, **settings))

    return build


def small(name: str) -> Callable[[], Step]:
    """A step of one of the models made small by `integration_tests.libraries.vision`."""

    def build() -> Step:
        from integration_tests.libraries import vision

        return classification(vision.MODELS[name])

    return build


def small_resnet() -> Step:
    from integration_tests.libraries import vision

    resnet = vision.models.resnet
    return classification(lambda: (resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES), 32))


def small_mobilenet() -> Step:
    from integration_tests.libraries import vision

    blocks = [[1, 8, 1, 1], [6, 12, 2, 2], [6, 16, 2, 2]]
    return classification(lambda: (vision.models.MobileNetV2(CLASSES, 0.5, blocks, 4), 16))


def small_shufflenet() -> Step:
    from integration_tests.libraries import vision

    return classification(lambda: (vision.models.ShuffleNetV2([2, 2, 2], [8, 16, 32, 64, 64], CLASSES), 64))


class TwoHeads(nn.Module):
    """A classifier with an auxiliary one half-way, as GoogLeNet has them."""

    def __init__(self, first: nn.Module, head: nn.Module, auxiliary: nn.Module) -> None:
        super().__init__()
        self.first, self.head, self.auxiliary = first, head, auxiliary

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(images)
        return self.head(x), self.auxiliary(x)


def small_googlenet() -> Step:
    google = pytest.importorskip("torchvision.models.googlenet")
    first = nn.Sequential(
        google.BasicConv2d(3, 8, kernel_size=7, stride=2, padding=3), nn.MaxPool2d(3, 2, ceil_mode=True),
        google.BasicConv2d(8, 8, kernel_size=1), google.BasicConv2d(8, 16, kernel_size=3, padding=1),
        google.Inception(16, 8, 8, 16, 4, 8, 8),
    )  # fmt: skip
    head = nn.Sequential(
        nn.MaxPool2d(3, 2, ceil_mode=True), google.Inception(40, 16, 8, 24, 4, 8, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(56, CLASSES),
    )  # fmt: skip
    return classification(lambda: (TwoHeads(first, head, google.InceptionAux(40, CLASSES)), 32))


def small_inception() -> Step:
    """Inception v3's blocks, of the kinds whose widths can be chosen, and the one that halves the size."""
    from integration_tests.libraries import vision

    inception = vision.models.inception
    layers = nn.Sequential(
        inception.BasicConv2d(3, 16, kernel_size=3, stride=2), inception.InceptionA(16, pool_features=8),
        inception.InceptionB(232), inception.InceptionC(712, channels_7x7=16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(768, CLASSES),
    )  # fmt: skip
    return classification(lambda: (layers, 16))


def small_efficientnet() -> Step:
    """Inverted bottlenecks with squeeze-and-excitation, SiLU and stochastic depth."""
    from integration_tests.libraries import vision

    block = vision.models.efficientnet.MBConvConfig
    blocks = [block(1, 3, 1, 16, 8, 1, 1, 1), block(6, 3, 2, 8, 16, 2, 1, 1), block(6, 5, 2, 16, 24, 2, 1, 1)]
    model = vision.models.EfficientNet(blocks, dropout=0.2, stochastic_depth_prob=0.2, num_classes=CLASSES)
    return classification(lambda: (model, 32))


class UNetBlock(nn.Module):
    """pix2pix's U-Net, from the inside outwards: down, what lies within, up, and a skip connection."""

    def __init__(self, outer: int, inner: int, within: nn.Module | None) -> None:
        super().__init__()
        normal = [nn.BatchNorm2d(inner)] if within else []
        self.down = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(outer, inner, 4, 2, 1, bias=False), *normal)
        self.within = within or nn.Identity()
        width = 2 * inner if within else inner
        up = nn.ConvTranspose2d(width, outer, 4, 2, 1, bias=False)
        self.up = nn.Sequential(nn.ReLU(), up, nn.BatchNorm2d(outer), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.up(self.within(self.down(x)))], 1)


class UNet(nn.Module):
    """pix2pix's generator with its L1 loss."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        innermost = UNetBlock(4 * width, 4 * width, None)
        blocks = UNetBlock(width, 2 * width, UNetBlock(2 * width, 4 * width, innermost))
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), blocks, nn.ReLU(), nn.ConvTranspose2d(2 * width, 3, 4, 2, 1), nn.Tanh()
        )

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.l1_loss(self.layers(given), wanted)


class Dcgan(nn.Module):
    """The generator's step of a DCGAN: its images, judged by the discriminator."""

    def __init__(self, latent: int = 16, width: int = 8) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(latent, 4 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU(True),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * width), nn.LeakyReLU(0.2, True),
            nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0),
        )  # fmt: skip

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        verdict = self.discriminator(self.generator(z))
        return F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))


class CycleganBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Cyclegan(nn.Module):
    """CycleGAN's ResNet generator with instance norm, and the L1 loss of its cycle."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU(True),
            CycleganBlock(2 * width), CycleganBlock(2 * width),
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh(),
        )  # fmt: skip

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.l1_loss(self.layers(given), wanted)


class SrganBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.PReLU(),
            nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Srgan(nn.Module):
    """SRResNet, SRGAN's generator: images twice as large by pixel shuffle, and their mean squared error."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, width, 9, 1, 4), nn.PReLU())
        after = [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)]
        self.body = nn.Sequential(SrganBlock(width), SrganBlock(width), *after)
        self.tail = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(width, 3, 9, 1, 4)
        )

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.head(given)
        return F.mse_loss(self.tail(x + self.body(x)), wanted)


class ModulatedConvolution(nn.Module):
    """StyleGAN2's: weights scaled per image by its style, then demodulated; images become groups."""

    def __init__(self, style: int, given: int, made: int, size: int = 3, demodulate: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(made, given, size, size))
        self.gain, self.demodulate = (given * size * size) ** -0.5, demodulate
        self.style = nn.Linear(style, given)
        nn.init.ones_(self.style.bias)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        batch, given, height, width = x.shape
        weight = self.gain * self.weight * self.style(w).view(batch, 1, given, 1, 1)
        if self.demodulate:
            weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = x.reshape(1, batch * given, height, width)
        made = F.conv2d(x, weight.flatten(0, 1), padding=weight.shape[-1] // 2, groups=batch)
        return made.view(batch, -1, height, width)


class StyleganLayer(nn.Module):
    """Twice the size, a modulated convolution, noise, and a scaled leaky ReLU."""

    def __init__(self, style: int, given: int, made: int) -> None:
        super().__init__()
        self.convolution = ModulatedConvolution(style, given, made)
        self.bias, self.strength = nn.Parameter(torch.zeros(made, 1, 1)), nn.Parameter(torch.full((), 0.1))
        self.to_image = ModulatedConvolution(style, made, 3, 1, demodulate=False)

    def forward(self, x: torch.Tensor, w: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.convolution(x, w)
        x = x + self.strength * F.interpolate(noise, size=x.shape[2:]) + self.bias
        x = F.leaky_relu(x, 0.2) * 2**0.5
        return x, self.to_image(x, w)


class Stylegan(nn.Module):
    """StyleGAN2's generator with image skips, and a discriminator with minibatch standard deviation."""

    def __init__(self, latent: int = 16, width: int = 8) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(latent, latent), nn.LeakyReLU(0.2), nn.Linear(latent, latent))
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.layers = nn.ModuleList(StyleganLayer(latent, width, width) for _ in range(3))
        self.judge = nn.Sequential(
            nn.Conv2d(4, width, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(64 * width, 1),
        )  # fmt: skip

    def forward(self, z: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        w = self.mapping(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x, image = self.start.expand(z.shape[0], -1, -1, -1), z.new_zeros(z.shape[0], 3, 4, 4)
        for layer in self.layers:
            x, more = layer(x, w, noise)
            image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False) + more
        spread = (image.var(0, correction=0) + 1e-8).sqrt().mean().expand(image.shape[0], 1, *image.shape[2:])
        return F.softplus(-self.judge(torch.cat([image, spread], 1))).mean()


class LanguageModel(nn.Module):
    """Zaremba's LSTM: embeddings, two layers with dropout between, and cross entropy of the next word."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, width), nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.scores = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.dropout(self.embedding(words[:, :-1])))
        return F.cross_entropy(self.scores(self.dropout(states)).flatten(0, 1), words[:, 1:].flatten())


def image_to_image(module: type[nn.Module], size: int = 32, scale: int = 1) -> Callable[[], Step]:
    """A step of a generator that is given images, and whose own are compared with others."""
    return lambda: Step(
        module(), (torch.randn(BATCH, 3, size, size), torch.rand(BATCH, 3, scale * size, scale * size) * 2 - 1)
    )


ARCHITECTURES: dict[str, Callable[[], Step]] = {
    "resnet": small_resnet,
    "mobilenet_v2": small_mobilenet,
    "mobilenet_v3_small": named("mobilenet_v3_small", width_mult=0.5),
    "shufflenet_v2": small_shufflenet,
    "squeezenet": named("squeezenet1_1"),
    "googlenet": small_googlenet,
    "inception_v3": small_inception,
    "efficientnet": small_efficientnet,
    "densenet": small("densenet"),
    "convnext": small("convnext"),
    "vit": small("vit"),
    "swin": small("swin"),
    "unet": image_to_image(UNet),
    "dcgan": lambda: Step(Dcgan(), (torch.randn(BATCH, 16, 1, 1),)),
    "cyclegan": image_to_image(Cyclegan, 16),
    "srgan": image_to_image(Srgan, 16, 2),
    "stylegan2": lambda: Step(Stylegan(), (torch.randn(BATCH, 16), torch.randn(BATCH, 1, 32, 32))),
    "lstm": lambda: Step(LanguageModel(), (torch.randint(WORDS, (BATCH, 13)),)),
}
