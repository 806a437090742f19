"""torch.nn modules: parameters, buffers, modes, containers, hooks, attributes that change."""

import torch
from torch import nn

from integration_tests.harness.differential import Case


class _Block(nn.Module):
    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.relu(self.linear(self.norm(x)))


def mlp_inference() -> Case:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2), nn.Softmax(-1)).eval()
    return Case(model, [(torch.randn(3, 4),), (torch.randn(3, 4),), (torch.randn(5, 4),)], watch=[model])


def module_attribute_changes() -> Case:
    model = _Block(4)

    def f(x: torch.Tensor, scale: float):
        model.scale = scale
        return model(x)

    return Case(f, [(torch.randn(2, 4), s) for s in (1.0, 1.0, 2.0, 1.0)], watch=[model])


def train_and_eval_mode() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def f(x: torch.Tensor, training: bool):
        return model(x)

    def driver(x: torch.Tensor, training: bool):
        model.train(training)
        return f(x, training)

    return Case(driver, [(torch.randn(6, 4), t) for t in (True, False, True, False)], watch=[model])


def module_list_and_dict() -> Case:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([_Block(4, scale=i) for i in range(3)])
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
            self.register_buffer("bias", torch.ones(4))
            self.extra = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor, head: str) -> dict:
            for i, block in enumerate(self.blocks):
                x = block(x) + i
            for name, parameter in self.named_parameters(recurse=False):
                x = x + parameter * len(name)
            return {name: layer(x + self.bias) for name, layer in self.heads.items() if head in (name, "all")}

    model = Net()
    return Case(model, [(torch.randn(2, 4), "a"), (torch.randn(2, 4), "all"), (torch.randn(2, 4), "b")], watch=[model])


def conv_network() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )
    return Case(model, [(torch.randn(4, 1, 8, 8),) for _ in range(3)], watch=[model], backward=True, atol=1e-4)


def forward_hooks() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    seen: list = []

    def hook(module, args, output):
        seen.append(tuple(output.shape))
        return output * 2

    model[0].register_forward_hook(hook)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return Case(model, [(torch.randn(2, 3),)] * 3, watch=[seen])


def module_state_updated_in_forward() -> Case:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.calls = 0
            self.cache: dict = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.total += x.detach()
            self.cache[x.shape[0]] = self.calls
            self.last = x * 2
            return x + self.total

    model = Counter()
    return Case(model, [(torch.randn(3),)] * 4, watch=[model])


def shared_parameters() -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(ids))

    model = Tied()
    return Case(model, [(torch.randint(0, 10, (2, 3)),) for _ in range(3)], watch=[model], backward=True)


def attention() -> Case:
    model = nn.MultiheadAttention(8, 2, batch_first=True)

    def f(x: torch.Tensor):
        out, weights = model(x, x, x, need_weights=True)
        return out, weights

    return Case(f, [(torch.randn(2, 5, 8),) for _ in range(3)], watch=[model], backward=True)


def recurrent_cell() -> Case:
    cell = nn.GRUCell(3, 4)

    def f(steps: torch.Tensor, hidden: torch.Tensor):
        outputs = []
        for step in steps:
            hidden = cell(step, hidden)
            outputs.append(hidden)
        return torch.stack(outputs)

    return Case(f, [(torch.randn(4, 2, 3), torch.zeros(2, 4)) for _ in range(3)], watch=[cell], backward=True)
