"""Forms that change `x` or a state of their own by a layer: `inplace=True`, running statistics, renormalised tables."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def _statistics(x: torch.Tensor) -> Any:
    mean, var = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(x, mean, var, training=True)
    return y, mean, var


def _image_statistics(x: torch.Tensor) -> Any:
    mean, var = torch.zeros(1), torch.ones(1)
    return F.instance_norm(x[None, None], mean, var, use_input_stats=True), mean, var


def _renormalised(n: torch.Tensor) -> Any:
    table = torch.arange(20.0).view(10, 2)
    return F.embedding(n, table, max_norm=1.0), table


def _bag(n: torch.Tensor) -> Any:
    table = torch.arange(20.0).view(10, 2)
    return F.embedding_bag(n, table, max_norm=1.0, mode="sum"), table


def _stacked(x: torch.Tensor) -> Any:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Hardtanh(inplace=True), nn.Dropout(0.0, inplace=True))
    return net(x)


LAYERS: dict[str, Callable[..., Any]] = {
    "relu": lambda x, y, n: F.relu(x, inplace=True),
    "relu6": lambda x, y, n: F.relu6(x, inplace=True),
    "elu": lambda x, y, n: F.elu(x, 0.5, inplace=True),
    "selu": lambda x, y, n: F.selu(x, inplace=True),
    "celu": lambda x, y, n: F.celu(x, inplace=True),
    "leaky_relu": lambda x, y, n: F.leaky_relu(x, 0.1, inplace=True),
    "hardtanh": lambda x, y, n: F.hardtanh(x, inplace=True),
    "hardswish": lambda x, y, n: F.hardswish(x, inplace=True),
    "hardsigmoid": lambda x, y, n: F.hardsigmoid(x, inplace=True),
    "silu": lambda x, y, n: F.silu(x, inplace=True),
    "mish": lambda x, y, n: F.mish(x, inplace=True),
    "threshold": lambda x, y, n: F.threshold(x, 0.5, 9.0, inplace=True),
    "rrelu_evaluating": lambda x, y, n: F.rrelu(x, training=False, inplace=True),
    "rrelu_training": lambda x, y, n: F.rrelu(x, training=True, inplace=True),
    "dropout_evaluating": lambda x, y, n: F.dropout(x, 0.5, training=False, inplace=True),
    "dropout_training": lambda x, y, n: F.dropout(x, 0.5, training=True, inplace=True),
    "dropout_certain": lambda x, y, n: F.dropout(x, 1.0, training=True, inplace=True),
    "alpha_dropout": lambda x, y, n: F.alpha_dropout(x, 0.5, training=True, inplace=True),
    "feature_dropout": lambda x, y, n: F.dropout1d(x[None], 0.5, training=True, inplace=True),
    "functional_relu_": lambda x, y, n: F.relu_(x),
    "functional_elu_": lambda x, y, n: F.elu_(x),
    "functional_leaky_relu_": lambda x, y, n: F.leaky_relu_(x),
    "relu_of_a_view": lambda x, y, n: (F.relu(x[0], inplace=True), x.sum()),
    "relu_unused": lambda x, y, n: (F.relu(x, inplace=True), F.silu(x[1:], inplace=True), None)[-1],
    "relu_module": lambda x, y, n: nn.ReLU(inplace=True)(x),
    "silu_module": lambda x, y, n: nn.SiLU(inplace=True)(x) + 1,
    "hardswish_module": lambda x, y, n: nn.Hardswish(inplace=True)(x.view(-1)),
    "leaky_module": lambda x, y, n: nn.LeakyReLU(0.2, inplace=True)(x),
    "threshold_module": lambda x, y, n: nn.Threshold(0.1, 20, inplace=True)(x),
    "stacked_modules": lambda x, y, n: _stacked(x),
    "batch_norm": lambda x, y, n: _statistics(x),
    "instance_norm": lambda x, y, n: _image_statistics(x),
    "embedding_renormalised": lambda x, y, n: _renormalised(n),
    "embedding_bag_renormalised": lambda x, y, n: _bag(n),
    "normalize_into": lambda x, y, n: F.normalize(y, dim=1, out=x),
    "clipped": lambda x, y, n: x.clip_(-1, 1).softmax(1),
}
