"""Operators that only real data makes fail, used, unused and caught, behind changes that eager has made by then."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, nothing

family = Family()
TABLE = torch.arange(12.0).view(4, 3)
ROW = torch.ones(3)


def _index(good: int = 1, bad: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([good]), torch.tensor([bad])


def _matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.eye(3) * 2, torch.zeros(3, 3)


def _negative() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0.5, 0.25]), torch.tensor([-0.5, 3.0])


def _whole() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([2, 3]), torch.tensor([2, 0])


def _nan() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.eye(2), torch.full((2, 2), float("nan"))


NUMBERS = torch.tensor([7, -8])
LOGITS = torch.zeros(1, 4)

#: name -> (operation on data, good and bad data)
OPERATIONS: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[torch.Tensor, torch.Tensor]]] = {
    "item_by_tensor": (lambda d: TABLE[d], _index()),
    "item_by_negative": (lambda d: TABLE[d, 0], _index(-1, -7)),
    "item_by_two": (lambda d: TABLE[d, d], _index(1, 3)),
    "index_select": (lambda d: TABLE.index_select(0, d), _index()),
    "take": (lambda d: torch.take(TABLE, d), _index(5, 30)),
    "gather": (lambda d: TABLE.gather(0, d.view(1, 1)), _index()),
    "embedding": (lambda d: F.embedding(d, TABLE), _index()),
    "embedding_bag": (lambda d: F.embedding_bag(d.view(1, 1), TABLE), _index()),
    "scatter": (lambda d: TABLE.scatter(0, d.view(1, 1), 5.0), _index()),
    "scatter_add": (lambda d: TABLE.scatter_add(0, d.view(1, 1), torch.ones(1, 1)), _index()),
    "index_add": (lambda d: TABLE.index_add(0, d, ROW[None]), _index()),
    "index_copy": (lambda d: TABLE.index_copy(0, d, ROW[None]), _index()),
    "index_fill": (lambda d: TABLE.index_fill(0, d, 1.0), _index()),
    "index_put": (lambda d: TABLE.index_put((d,), ROW), _index()),
    "one_hot": (lambda d: F.one_hot(d, 4), _index(1, -1)),
    "cross_entropy": (lambda d: F.cross_entropy(LOGITS, d), _index()),
    "nll_loss": (lambda d: F.nll_loss(LOGITS, d), _index(1, -5)),
    "bincount": (lambda d: torch.bincount(d), _index(1, -1)),
    "repeat_interleave": (lambda d: torch.repeat_interleave(ROW[:1], d), _index(2, -1)),
    "inverse": (lambda d: torch.linalg.inv(d), _matrices()),
    "solve": (lambda d: torch.linalg.solve(d, ROW), _matrices()),
    "cholesky": (lambda d: torch.linalg.cholesky(d), _matrices()),
    "singular_values": (lambda d: torch.linalg.svdvals(d), _nan()),
    "floor_division": (lambda d: NUMBERS // d, _whole()),
    "remainder": (lambda d: NUMBERS % d, _whole()),
    "fmod": (lambda d: torch.fmod(NUMBERS, d), _whole()),
    "division_rounded": (lambda d: torch.div(NUMBERS, d, rounding_mode="trunc"), _whole()),
    "bernoulli": (lambda d: torch.bernoulli(d), _negative()),
    "multinomial": (lambda d: torch.multinomial(d, 1), _negative()),
    "poisson": (lambda d: torch.poisson(d), _negative()),
    "normal": (lambda d: torch.normal(0.0, d), _negative()),
    "binary_cross_entropy": (lambda d: F.binary_cross_entropy(d, torch.ones(2)), _negative()),
    "quantile": (lambda d: torch.quantile(TABLE, d), _negative()),
    "assertion": (lambda d: torch._assert_async((d > 0).all()), _negative()),
    "maximum_unpooled": (lambda d: F.max_unpool1d(ROW[None, None, :1], d.view(1, 1, 1), 2), _index(1, 9)),
    "packed_sequence": (
        lambda d: nn.utils.rnn.pack_padded_sequence(TABLE[None], d, batch_first=True).data,
        _index(2, 0),
    ),
    "histogram_bounds": (lambda d: torch.histc(d), (torch.ones(2), torch.tensor([1.0, float("inf")]))),
    "bound_of_a_range": (lambda d: torch.arange(0, d.item()), (torch.tensor(3), torch.tensor(-3))),
    "integer_of_a_slice": (lambda d: TABLE.narrow(0, d.item(), 2), (torch.tensor(1), torch.tensor(3))),
}

AROUND = (nothing, nothing, torch.inference_mode, torch.inference_mode, torch.no_grad, torch.no_grad)


def _case(f: Callable[..., Any], data: tuple[torch.Tensor, torch.Tensor], first_bad: bool, **kwargs: Any) -> Case:
    good, bad = data
    order = (bad, good) * 3 if first_bad else (good, bad) * 3
    return Case(f, [(torch.ones(2), d.clone()) for d in order], around=AROUND, **kwargs)


def used(operation: Callable[..., Any], data: tuple[torch.Tensor, torch.Tensor], first_bad: bool) -> Case:
    """The result is returned; a list, a tensor and the generator changed before it, and others behind it."""
    log: list = []
    count = torch.zeros(1)

    def f(x, d):
        log.append("before")
        count.add_(1)
        x.mul_(2)
        noise = torch.rand(1)
        result = operation(d)
        log.append("behind")
        count.mul_(2)
        return result, x + noise

    return _case(f, data, first_bad, watch=[log, count])


def unused(operation: Callable[..., Any], data: tuple[torch.Tensor, torch.Tensor], first_bad: bool) -> Case:
    """The result is dropped: eager raises all the same."""
    log: list = []

    def f(x, d):
        log.append("before")
        x.add_(1)
        operation(d)
        log.append("behind")
        torch.rand(1)
        return x * 2

    return _case(f, data, first_bad, watch=[log])


def caught(operation: Callable[..., Any], data: tuple[torch.Tensor, torch.Tensor], first_bad: bool) -> Case:
    """The program goes on, with what was changed before the error and nothing of what stands behind it."""
    log: list = []

    def f(x, d):
        try:
            x.add_(1)
            log.append("before")
            result = operation(d)
            log.append("behind")
            x.mul_(10)
        except Exception as error:
            result = type(error).__name__
            log.append(str(error)[:60])
        finally:
            log.append("left")
        return result, x * 1

    return _case(f, data, first_bad, watch=[log])


for _count, (_name, (_operation, _data)) in enumerate(OPERATIONS.items()):
    for _kind in (used, unused, caught):
        _program = functools.partial(_kind, _operation, _data, bool(_count % 2))
        family.programs[f"{_name}__{_kind.__name__}"] = _program
family.warm_only.update(family.programs)


@family.program
def two_that_fail_in_order() -> Case:
    def f(x, d):
        a = NUMBERS // d
        b = TABLE[d]
        return a.sum() + b.sum() + x

    data = [torch.tensor(values) for values in ([1, 2], [0, 2], [9, 1], [0, 9], [9, 0])]
    return Case(f, [(torch.ones(1), d) for d in data])


@family.program
def the_later_one_stands_first_in_the_result() -> Case:
    def f(x, d):
        b = TABLE[d]
        NUMBERS % d
        return b.sum() + x

    data = [torch.tensor(values) for values in ([1, 2], [0, 2], [9, 1], [0, 9], [9, 0])]
    return Case(f, [(torch.ones(1), d) for d in data])


@family.program
def fails_on_an_input_changed_before() -> Case:
    def f(d):
        d.sub_(1)
        return NUMBERS // d, d

    return Case(f, [(torch.tensor(values),) for values in ([2, 3], [1, 3], [3, 1], [5, 5])])


@family.program
def fails_behind_an_operation_that_would_overwrite() -> Case:
    buffer = torch.arange(4.0)

    def f(x, d):
        held = buffer.clone()
        buffer.zero_()
        y = TABLE[d]
        buffer.copy_(held + 1)
        return y.sum() + buffer.sum() + x

    return Case(f, [(torch.ones(1), d) for d in (*_index(), *_index())], watch=[buffer])


@family.program
def fails_in_place() -> Case:
    def f(x, d):
        x[0] = 5
        x[d] = 7
        x[1] = 9
        return x * 1

    return Case(f, [(torch.zeros(3), d) for d in (*_index(), *_index())], around=AROUND[:4])


@family.program
def fails_in_a_loop() -> Case:
    seen: list = []

    def f(items, d):
        total = torch.zeros(3)
        for t in items:
            seen.append(len(seen))
            total += t[d].sum()
        return total

    narrow, wide = torch.ones(4), torch.ones(10)
    calls = [([wide, wide], d) for d in _index()] + [([wide, narrow, wide], d) for d in _index()]
    return Case(f, calls, watch=[seen])


@family.program
def fails_in_a_module() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(4, 3), nn.BatchNorm1d(3)
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, d):
            self.steps += 1
            y = self.norm(torch.arange(6.0).view(2, 3) * self.steps)
            self.table(d)
            self.steps += 10
            return y

    model = Model()
    return Case(model, [(d,) for d in (*_index(), *_index())], watch=[model], around=AROUND[:4])


@family.program
def fails_under_a_guard_that_held() -> Case:
    def f(x, d, k):
        y = x * k
        TABLE[d]
        return y

    calls = [(torch.ones(2), d, k) for k in (2, 2, 3) for d in _index()]
    return Case(f, calls)


@family.program
def shapes_that_do_not_fit() -> Case:
    log: list = []

    def f(x, y):
        log.append("before")
        x.add_(1)
        x @ y
        log.append("behind")
        return x + 1

    shapes = (2, 2), (3, 2), (2, 3), (3, 3)
    return Case(f, [(torch.ones(2, 2), torch.ones(shape)) for shape in shapes], watch=[log])


@family.program
def refused_in_place_and_unused() -> Case:
    weight = torch.ones(2, requires_grad=True)

    def f(x):
        x.add_(1)
        weight.add_(1)
        x.add_(10)
        return x * weight

    return Case(f, [(torch.ones(2),)] * 3, watch=[weight], around=(nothing, torch.no_grad, torch.inference_mode))


@family.program
def number_of_a_tensor_with_many() -> Case:
    def f(x):
        x.add_(1)
        try:
            x.item()
        except RuntimeError as error:
            x.mul_(2)
            return str(error), x * 1
        return float(x), x * 1

    return Case(f, [(torch.ones(n),) for n in (1, 2, 1, 2)])


@family.program
def truth_of_a_tensor_with_many() -> Case:
    def f(x):
        x.sub_(1)
        if x:
            return x + 1
        return x - 1

    return Case(f, [(torch.ones(n),) for n in (1, 2, 1)])
