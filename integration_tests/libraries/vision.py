"""torchvision's classification models, small, with weights that keep activations of ordinary size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

SEED = 0
CLASSES = 10


models = pytest.importorskip("torchvision.models")


def named(name: str, size: int = 32, **settings: object) -> Callable[[], tuple[nn.Module, int]]:
    """A model of torchvision's registry, for square images of `size` pixels."""
    return lambda: (models.get_model(name, weights=None, num_classes=CLASSES, **settings), size)


def small_densenet() -> tuple[nn.Module, int]:
    return models.DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=CLASSES), 32


def small_convnext() -> tuple[nn.Module, int]:
    config = models.convnext.CNBlockConfig
    return models.ConvNeXt([config(16, 32, 2), config(32, 64, 2), config(64, None, 1)], num_classes=CLASSES), 32


def small_vit() -> tuple[nn.Module, int]:
    vit = models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=CLASSES
    )
    nn.init.normal_(vit.heads.head.weight)
    return vit, 32


def small_swin(version: int) -> tuple[nn.Module, int]:
    swin = models.swin_transformer
    block, merging = {
        1: (swin.SwinTransformerBlock, swin.PatchMerging),
        2: (swin.SwinTransformerBlockV2, swin.PatchMergingV2),
    }[version]
    settings = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4], "num_classes": CLASSES}
    return models.SwinTransformer([4, 4], **settings, block=block, downsample_layer=merging), 32


def small_maxvit() -> tuple[nn.Module, int]:
    blocks = {"block_channels": [16, 32], "block_layers": [1, 2], "head_dim": 8, "stochastic_depth_prob": 0.2}
    return models.MaxVit((32, 32), 16, 2, **blocks, num_classes=CLASSES), 32


MODELS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "alexnet": named("alexnet", 64),
    "vgg11": named("vgg11"),
    "vgg11_bn": named("vgg11_bn"),
    "resnet18": named("resnet18"),
    "resnet50": named("resnet50", 64),
    "resnext50_32x4d": named("resnext50_32x4d", 64),
    "wide_resnet50_2": named("wide_resnet50_2", 64),
    "densenet": small_densenet,
    "googlenet": named("googlenet", init_weights=False, aux_logits=False),
    "inception_v3": named("inception_v3", 75, init_weights=False, aux_logits=False),
    "squeezenet1_0": named("squeezenet1_0"),
    "squeezenet1_1": named("squeezenet1_1"),
    "shufflenet_v2_x0_5": named("shufflenet_v2_x0_5"),
    "mnasnet0_5": named("mnasnet0_5", 64),
    "mobilenet_v2": named("mobilenet_v2"),
    "mobilenet_v3_small": named("mobilenet_v3_small"),
    "mobilenet_v3_large": named("mobilenet_v3_large"),
    "efficientnet_b0": named("efficientnet_b0"),
    "efficientnet_v2_s": named("efficientnet_v2_s"),
    "regnet_x_400mf": named("regnet_x_400mf", 64),
    "regnet_y_400mf": named("regnet_y_400mf"),
    "convnext": small_convnext,
    "vit": small_vit,
    "swin": lambda: small_swin(1),
    "swin_v2": lambda: small_swin(2),
    "maxvit": small_maxvit,
}


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in evaluation, and a batch of two images, the same on every call.

    One pass in training sets the running statistics to those of a larger batch, without which random weights let the
    activations of a deep network die away.
    """
    torch.manual_seed(SEED)
    model, size = MODELS[name]()
    images = torch.randn(16, 3, size, size)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        model.train()(images)
    return model.eval(), images[:2].clone()
