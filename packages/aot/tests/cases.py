"""Graphs with views, aliases and mutations, by name: (function, example tensors)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def r(*size, grad=False):
    torch.manual_seed(sum(size))
    return torch.randn(*size, requires_grad=grad)


def _views_of_result(x):
    y = x * 2
    return y, y.view(-1), y.detach(), y[0]


def _views_without_base(x):
    y = x * 2
    return y.view(-1), y.t()


def _lstm_states(x, h, c, a, b, d, e):
    results = torch.lstm(x, (h, c), (a, b, d, e), True, 1, 0.0, True, False, True)
    return results[1], results[2]


def _bidirectional_lstm(x, h, a, b, c, d, e, f, g, i):
    results = torch.lstm(x, (h, h), (a, b, c, d, e, f, g, i), False, 2, 0.5, True, True, False)
    return results[0], results[1], results[2]


def _data(x):
    y = x * 2
    return x.data, y.data, y, x.detach()


def _two_detached(x):
    y = x * 2
    return y.detach(), y.detach()


def _views_of_input(x):
    return x.view(-1), x, x.t()[0], x.split(2, 1)[1], x.detach(), x.unbind()[0]


def _mutated_then_viewed(x):
    x.add_(1)
    return x, x.t(), x * 2


def _mutated_by_parameter(x, w):
    x.add_(w)
    return x, x[0], x * 2


def _mutated_through_view(x, w):
    x[0].mul_(2)
    return x.sum() * w


def _assigned_column(x, w):
    x.select(1, 0).copy_(w)
    return x.clone()


def _swapped(x, y):
    copy = x.clone()
    x.copy_(y)
    y.copy_(copy)
    return (x + y,)


def _one_tensor_twice(x):
    y = x.exp()
    return y, y, y + 0


def _mutated_intermediate(x):
    return F.relu((x * 2).mul_(3).add_(x), inplace=True)


def _view_updates_base(x):
    y = x * 1
    v = y.view(-1)
    v.add_(1)
    y.mul_(2)
    z = y.t()
    z[0].zero_()
    return y, v, z


def _transposed_buffer(x):
    out = x.new_empty(4, 3).t()
    out.copy_(x)
    return out + 0, out


def _saved_then_overwritten(x, w):
    y = x.clone() * w
    x.add_(1)
    return (y,)


def _other_outputs(x):
    return 3, None, "text", x.max(1)[1], x.sum(), 2.5, torch.float32


CASES = {
    "losses of nothing": (
        lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.l1_loss(x, y)),
        [r(0, 3, grad=True), r(0, 3)],
    ),
    "one view of equal results": (
        lambda x: [x.sum(0)[1], x.sum(0)[1], (x + 1).split(1)[1], (x + 1).split(1)[1], x.sum(1)[::2], x.sum(1)[::2]],
        [r(3, 4, grad=True)],
    ),
    "views of a result": (_views_of_result, [r(3, 4, grad=True)]),
    "views without their base": (_views_without_base, [r(3, 4, grad=True)]),
    "data": (_data, [r(3, 4, grad=True)]),
    "two detached": (_two_detached, [r(3, 4, grad=True)]),
    "views of an input": (_views_of_input, [r(3, 4, grad=True)]),
    "mutated, then viewed": (_mutated_then_viewed, [r(3, 4)]),
    "mutated by a parameter": (_mutated_by_parameter, [r(3, 4), r(3, 4, grad=True)]),
    "mutated through a view": (_mutated_through_view, [r(3, 4), r(3, 4, grad=True)]),
    "assigned column": (_assigned_column, [r(3, 4), r(3, grad=True)]),
    "swapped": (_swapped, [r(3, 4), r(3, 4) + 1]),
    "one tensor twice": (_one_tensor_twice, [r(3, 4, grad=True)]),
    "copies made twice": (lambda x: (x.t().flatten(), x.t().reshape(-1), x.exp()[0], x.exp()), [r(3, 4, grad=True)]),
    "mutated intermediate": (_mutated_intermediate, [r(3, 4, grad=True)]),
    "view updates base": (_view_updates_base, [r(3, 4, grad=True)]),
    "transposed buffer": (_transposed_buffer, [r(3, 4, grad=True)]),
    "saved, then overwritten": (_saved_then_overwritten, [r(3, 4), r(3, 4, grad=True)]),
    "other outputs": (_other_outputs, [r(2, 3, grad=True)]),
    "expanded": (lambda x: x.expand(3, 4) * 1, [r(1, 4, grad=True)]),
    "separate parts": (lambda x, w: (x.sin(), w.cos()), [r(3, 4, grad=True), r(3, 4, grad=True)]),
    "one input without gradient": (lambda x, w: x.sin() * w, [r(3, 4), r(3, 4, grad=True)]),
    "complex": (lambda x: (torch.view_as_real(torch.fft.fft(x)), x), [r(8, grad=True)]),
    "constant": (lambda x: x * torch.tensor([1.0, 2, 3]) + torch.arange(3), [r(2, 3, grad=True)]),
    "constant returned": (lambda x: (torch.tensor([1.0, 2, 3]), x), [r(2, 3, grad=True)]),
    "no use of the input": (lambda x: (torch.ones(2), torch.full((2,), 3)), [r(2, 3, grad=True)]),
    "scalar input": (lambda x: x * x, [torch.tensor(3.0, requires_grad=True)]),
    "empty input": (lambda x: x * 2, [r(0, 3, grad=True)]),
    "not contiguous": (lambda x: x.t() @ x + x.t().contiguous().sum(), [r(4, 4).t().requires_grad_()]),
}


def _bias(x, w, b):
    return F.relu(F.conv2d(x, w, b, padding=1))


LAYERS = {
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [r(2, 2, 8, 4, grad=True) for _ in range(3)],
    ),
    "convolution": (_bias, [r(2, 3, 8, 8, grad=True), r(4, 3, 3, 3, grad=True), r(4, grad=True)]),
    "channels last": (
        _bias,
        [
            r(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_(),
            r(4, 3, 3, 3, grad=True),
            r(4, grad=True),
        ],
    ),
    "layer norm": (
        lambda x, w: F.gelu(F.layer_norm(x @ w, (4,))) @ w,
        [r(3, 4, grad=True), r(4, 4, grad=True)],
    ),
    "batch norm, training": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True, 0.1),
        [r(3, 4, 5, grad=True), r(4, grad=True), r(4, grad=True), r(4), r(4).abs()],
    ),
    "batch norm, counting": (
        lambda x, m, v, n: (n.add_(1), torch.batch_norm(x, None, None, m, v, True, 0.1, 1e-5, True))[1:],
        [r(3, 4, 5, grad=True), r(4), r(4).abs(), torch.tensor(0)],
    ),
    "batch norm, evaluation": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, False, 0.1),
        [r(3, 4, 5, grad=True), r(4, grad=True), r(4, grad=True), r(4), r(4).abs()],
    ),
    "batch norm, no statistics": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1),
        [r(3, 4, 5, grad=True), r(4, grad=True), r(4, grad=True)],
    ),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, None, None, w, b, True, 0.1),
        [r(3, 4, 5, grad=True), r(4, grad=True), r(4, grad=True)],
    ),
    "embedding and loss": (
        lambda i, w: F.cross_entropy(F.embedding(i, w), i),
        [torch.tensor([0, 3, 1, 1]), r(4, 4, grad=True)],
    ),
    "lstm": (
        lambda x, h, c, a, b, d, e: torch.lstm(x, (h, c), (a, b, d, e), True, 1, 0.0, True, False, False)[0],
        [r(*s, grad=True) for s in [(5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4), (16,), (16,)]],
    ),
    "lstm, its states": (
        _lstm_states,
        [r(*s, grad=True) for s in [(5, 2, 3), (1, 5, 4), (1, 5, 4), (16, 3), (16, 4), (16,), (16,)]],
    ),
    "lstm of two layers in two directions, without biases": (
        _bidirectional_lstm,
        [r(*s, grad=True) for s in [(5, 2, 3), (4, 2, 4), *[(16, 3), (16, 4)] * 2, *[(16, 8), (16, 4)] * 2]],
    ),
    "lstm, some weights frozen": (
        lambda x, h, a, b, d, e: torch.lstm(x, (h, h), (a, b, d, e), True, 1, 0.0, True, False, False)[0],
        [
            r(5, 2, 3),
            r(1, 2, 4),
            *[r(*s, grad=grad) for s, grad in [((16, 3), False), ((16, 4), True), ((16,), False), ((16,), True)]],
        ],
    ),
    "pooling": (lambda x: F.max_pool2d(F.avg_pool2d(x, 2), 2), [r(1, 2, 8, 8, grad=True)]),
    "dropout": (lambda x: F.dropout(x, 0.3) * F.dropout(x, 0.5), [r(30, 4, grad=True)]),
    "random and mutated": (
        lambda x: (F.dropout(x, 0.3), x.add_(1), torch.rand(3), x.normal_())[:3],
        [r(30, 4)],
    ),
    "random, unused": (lambda x: (torch.rand(3), F.dropout(x, 0.3), x * 2)[2:], [r(30, 4, grad=True)]),
}
