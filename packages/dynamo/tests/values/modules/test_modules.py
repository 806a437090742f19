"""nn.Module: calls, registries, hooks, buffers, training mode, containers, stores, compared with eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import check, compiled
from torch import nn

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.skip = None
        self.calls = 0

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        h = F.gelu(self.linear(x)) * scale + self.bias
        if self.skip is not None:
            h = h + self.skip(x)
        return self.norm(h) - self.mean


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 3)})
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Any, head: str = "a") -> Any:
        for i, block in enumerate(self.blocks):
            x = block(x, scale=1.0 + i)
        for block in self.blocks[1:]:
            x = x + block(x)
        x = self.tail(self.blocks[-1](x))
        first = self.tail[0]
        return self.heads[head](x), len(self.blocks), "b" in self.heads, x @ first.weight, self.tail[:2](x)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Any) -> Any:
        return self.pool(F.max_pool2d(torch.relu(self.bn(self.conv(x))), 2)).flatten(1)


class Running(nn.Module):
    """Reassigned buffers, buffers changed in place, plain attributes, losses computed in forward."""

    total: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))
        self.register_buffer("seen", torch.tensor(0))
        self.last: Any = None
        self.history: list[int] = []

    def forward(self, x: Any) -> Any:
        self.total = self.total * 0.9 + x.detach().mean(0)
        self.seen.add_(1)
        self.last = x.shape[0]
        self.history.append(len(self.history))
        loss = nn.MSELoss(reduction="sum")
        return x - self.total, loss(x, self.total.expand_as(x)), self.training


class Custom(Block):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) + 1

    def __getattr__(self, name: str) -> Any:
        return 4.0 if name == "invented" else super().__getattr__(name)

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        return super().forward(x, scale=scale) * self.invented


def call(module: Any, x: Any) -> Any:
    return module(x)


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "make", [Block, Net, Running, Custom, lambda: Net().eval()], ids=["block", "net", "running", "custom", "eval"]
)
def test_module(make: Any) -> None:
    subject = check(call, seeded(make), X)
    assert not subject.of_kind("break"), [str(event.broken) for event in subject.of_kind("break")]


def test_batch_norm_statistics_move_as_in_eager() -> None:
    eager = seeded(Convolutional)
    traced = copy.deepcopy(eager)
    subject = compiled(call)
    for step in range(3):
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        assert torch.allclose(subject(traced, x), eager(x))
        assert torch.equal(traced.bn.running_mean, eager.bn.running_mean)
        assert traced.bn.num_batches_tracked == step + 1
    assert len(subject.graphs) == 1


def test_running_state_is_kept_on_the_module() -> None:
    module, twin = seeded(Running), seeded(Running)
    subject = compiled(call)
    for _ in range(3):
        subject(module, X)
        twin(X)
    assert torch.equal(module.total, twin.total)
    assert "total" in module._buffers
    assert "total" not in module.__dict__
    assert (module.last, module.history, int(module.seen)) == (4, [0, 1, 2], 3)


def test_hooks_run_in_order_and_later_hooks_recompile() -> None:
    module = seeded(Block)
    order: list[str] = []
    subject = compiled(call)
    plain = subject(module, X)

    def double(mod: Any, args: Any) -> Any:
        order.append("pre")
        return (args[0] * 2,)

    def add_one(mod: Any, args: Any, kwargs: Any, out: Any) -> Any:
        order.append("post")
        return out + 1

    pre = module.register_forward_pre_hook(double)
    post = module.register_forward_hook(add_one, with_kwargs=True)
    assert torch.allclose(subject(module, X), module.forward(X * 2) + 1)
    assert order == ["pre", "post"]
    pre.remove()
    post.remove()
    assert torch.allclose(subject(module, X), plain)


def test_global_forward_hook_is_noticed() -> None:
    module = seeded(Block)
    subject = compiled(call)
    plain = subject(module, X)
    handle = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out + 1)
    try:
        assert torch.allclose(subject(module, X), module(X))
        assert not torch.allclose(subject(module, X), plain)
    finally:
        handle.remove()


def test_backward_hooks_are_registered_after_the_graph() -> None:
    module = seeded(Block)
    seen: list[int] = []
    module.linear.register_full_backward_hook(lambda mod, gin, gout: seen.append(len(gout)))
    subject = compiled(call)
    subject(module, X).sum().backward()
    assert seen == [1]
    assert not subject.of_kind("break")


def test_changes_of_the_module_recompile() -> None:
    module = seeded(Block)
    subject = compiled(call)
    subject(module, X)
    for change in (
        lambda: module.eval(),
        lambda: setattr(module, "skip", nn.Linear(8, 8)),
        lambda: setattr(module.norm, "eps", 0.5),
        lambda: setattr(module, "linear", nn.Identity()),
        lambda: setattr(module, "bias", nn.Parameter(torch.zeros(8))),
        lambda: module.register_buffer("mean", torch.ones(8)),
        lambda: setattr(module, "forward", lambda x: x * 3),
    ):
        change()
        assert torch.allclose(subject(module, X), module(X))


def test_train_and_eval_inside() -> None:
    def program(module: Any, x: Any) -> Any:
        module.eval()
        y = module(x)
        module.train()
        return y, module.training, [child.training for child in module.children()]

    module = seeded(Net)
    found, training, children = compiled(program)(module, X)
    assert torch.allclose(found[0], module.eval()(X)[0])
    assert training and all(children)


def test_equal_layers_share_one_entry() -> None:
    blocks = [seeded(Block) for _ in range(4)]
    subject = compiled(call)
    for block in blocks:
        assert torch.allclose(subject(block, X), block(X))
    assert len(subject.graphs) == 1


def test_parametrised_weight() -> None:
    class Double(nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 2

    linear = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(linear, "weight", Double())
    assert torch.allclose(compiled(call)(linear, X), linear(X))
