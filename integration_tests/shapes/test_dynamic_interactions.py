"""Programs in which changing sizes meet views, changes in place, hooks, modes, breaks, holders, threads.

Each in one of three ways of compiling it, in turn; in long runs, `FRAMESMITH_LONG=1`, in all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.sweeps import in_turn

#: Rows at each call: what is first met, what changes, the special sizes, large ones, and the first again.
SIZES = (4, 6, 9, 1, 0, 6, 300, 4)
Pair = namedtuple("Pair", "left right")
TABLE = torch.arange(5.0)
SEEN: list[Any] = []


@dataclasses.dataclass
class Holder:
    """Holds a tensor and a number made of its size."""

    data: torch.Tensor
    length: int = 0


def in_place(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    y[: x.shape[0] // 2] += 1
    return x + y


def view_of_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    part = x[x.shape[0] // 2 :]
    return part, x.t(), y.view(-1, y.shape[0])


def views_of_result(x: torch.Tensor, y: torch.Tensor) -> Any:
    both = x * y
    return both, both[: x.shape[0] // 3], both.view(-1)


def same_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = x + y.shape[0]
    return out, out, x, (x, y)


def hooked(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x * 2
    if h.requires_grad:
        h.register_hook(lambda grad: grad * grad.shape[0])
    return h * y


def kept(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = (x * y).sin()
    if h.requires_grad:
        h.retain_grad()
    return h, h.sum() * x.shape[0]


def without_gradients(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        scale = x.norm() + x.numel()
    return x / scale + y


def inference(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.inference_mode():
        return (x * 2 + y)[: x.shape[0]]


def break_within(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x * x.shape[0]
        print(end="")
        b = y + a.shape[0]
    return a + b * x


def break_between_sizes(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x.shape[0] * 2 + 1
    print(end="")
    return torch.ones(n) * n, x.sum(), y * n


def data_branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x[: x.shape[0] // 2] * 2
    return y + x.shape[0]


def cast(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ y.t()).float() * x.shape[0]


def shapes_in_containers(x: torch.Tensor, y: torch.Tensor) -> Any:
    sizes = {"x": x.shape, "n": [x.shape[0], y.numel()], x.shape[0]: "rows"}
    return sizes, x + sizes["n"][1], Pair(x.shape[0], x.size())


def holder(x: torch.Tensor, y: torch.Tensor) -> Any:
    held = Holder(x * 2)
    held.length = len(held.data)
    return held.data + held.length, held.length, held.data.shape


def namespace(x: torch.Tensor, y: torch.Tensor) -> Any:
    spaces = types.SimpleNamespace(n=x.shape[0], of=OrderedDict(y=y))
    spaces.n += 1
    return x * spaces.n, spaces.n, list(spaces.of.items())[0][1] + spaces.n


def written_elsewhere(x: torch.Tensor, y: torch.Tensor) -> Any:
    SEEN.append(x.shape[0])
    SEEN[:] = SEEN[-2:]
    return x + len(SEEN), list(SEEN)


def loop_over_rows(x: torch.Tensor, y: torch.Tensor) -> Any:
    total = y.sum()
    for row in x[:3]:
        total = total + row.sum() * x.shape[0]
    return total


def while_halving(x: torch.Tensor, y: torch.Tensor) -> Any:
    n, steps = x.shape[0], 0
    while n > 1:
        n //= 2
        steps += 1
    return x * steps, steps, n


def raises_at_one_size(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.shape[0] == 9:
        raise ValueError(f"{x.shape[0]} rows")
    return x + y


def caught(x: torch.Tensor, y: torch.Tensor) -> Any:
    try:
        return x.view(3, -1) * x.shape[0]
    except RuntimeError as error:
        return str(error), y + 1


def fails_in_torch(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.reshape(2, -1) + y.sum()


def random_numbers(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.rand(x.shape[0], 2) + x.sum(), F.dropout(y, 0.5), torch.randperm(x.shape[0])


def data_sizes(x: torch.Tensor, y: torch.Tensor) -> Any:
    positive = x[x > 0]
    return positive * 2, positive.shape, (x > 0).nonzero().sum(), torch.unique(y.round())


def item_of(x: torch.Tensor, y: torch.Tensor) -> Any:
    count = (x > 0).sum().item()
    return y * count, count + 1, torch.full((2,), count)


def padded(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.pad(x, (0, 0, 0, 10 - x.shape[0] % 10)), torch.cat([y, TABLE[None, :3].expand(x.shape[0] % 3, -1)])


def indexed(x: torch.Tensor, y: torch.Tensor) -> Any:
    at = torch.arange(x.shape[0]).flip(0)
    return x[at], y[at // 2], x.index_select(0, at % max(x.shape[0], 1))


def reductions(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.sum(0), x.mean(1), y.var(1), x.softmax(0), y.cumsum(0), x.logsumexp(1), (x == y).all()


def normalised(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.layer_norm(x, (3,)), F.normalize(y, dim=1), (x - x.mean(0, keepdim=True)) / (x.shape[0] + 1)


def attention(x: torch.Tensor, y: torch.Tensor) -> Any:
    q, k = x[None, None], y[None, None]
    return F.scaled_dot_product_attention(q, k, k, is_causal=True)


def convolved(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.conv1d(x.t()[None], torch.ones(2, 3, 1)).relu() + y.sum()


def shrunk(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.interpolate(x.t()[None], scale_factor=0.2), F.interpolate(y.t()[None], x.shape[0] // 6, mode="linear")


def powers(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x.shape[0]
    return x.tanh() ** (n // 2), n ** y.tanh(), (n + 0.5) ** x.tanh(), torch.pow(y.tanh(), exponent=n)


def strided(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x[::2] * 2, x.t()[:, 1:].sum(0), y.as_strided((y.shape[0], 1), (3, 1)) + 1, x.stride(), x.is_contiguous()


def swapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    x, y = y.unsqueeze(1), x.unsqueeze(0)
    return (x - y).abs().sum(-1)


def folded(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.repeat(2, 1).unfold(0, 2, 2), x.flatten().unflatten(0, (-1, 3)), torch.stack([x, y]).permute(2, 0, 1)


def formatted(x: torch.Tensor, y: torch.Tensor) -> Any:
    return f"{x.shape[0]}x{x.shape[1]}: {tuple(x.shape)}", x + y


def nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    def scaled(by: float) -> torch.Tensor:
        return x * by + n

    n = x.shape[0]
    return [scaled(k / (n + 1)) for k in range(3)], (lambda: n + 1)()


def generated(x: torch.Tensor, y: torch.Tensor) -> Any:
    def parts() -> Any:
        for k in range(3):
            yield x[k : k + x.shape[0] // 2].sum() + k

    return sum(parts()), max(n * 2 for n in x.shape)


def detached(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x.detach()
    return (x * z).sum() * x.shape[0], z, y.detach().clone()


def compared(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.shape == y.shape, x.shape[0] in (4, 300), x.size(0) is not None, x.shape > (5,), x + y


def sorted_rows(x: torch.Tensor, y: torch.Tensor) -> Any:
    k = min(3, x.shape[0])
    return x.sort(0).values, y.topk(k, 0).indices, x[:k].argsort(1)


def scattered(x: torch.Tensor, y: torch.Tensor) -> Any:
    at = torch.arange(x.shape[0]) % 2
    return torch.zeros(2, 3).index_add(0, at, x), torch.zeros(x.shape[0], 3).scatter(1, at[:, None], 1.0) + y


def complex_numbers(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.complex(x, y)
    return (z * z.conj()).real + x.shape[0], z.abs()


def integers(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = (x * 10).to(torch.int64)
    return n // 3, n % (x.shape[0] + 2), n << 1, (n > 2) & (n < x.shape[0]), n.sum()


def out_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.empty(x.shape[0], 3)
    torch.add(x.detach(), y.detach(), out=out)
    return out


PROGRAMS = [
    in_place, view_of_input, views_of_result, same_twice, hooked, kept, without_gradients, inference, break_within,
    break_between_sizes, data_branch, cast, shapes_in_containers, holder, namespace, written_elsewhere, loop_over_rows,
    while_halving, raises_at_one_size, caught, fails_in_torch, random_numbers, data_sizes, item_of, padded, indexed,
    reductions, normalised, attention, convolved, shrunk, strided, swapped, folded, formatted, nested, generated,
    detached, compared, powers, sorted_rows, scattered, complex_numbers, integers, out_argument,
]  # fmt: skip


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in a result, as they come."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    return [t for part in result for t in tensors_of(part)] if isinstance(result, (tuple, list)) else []


def described(value: Any, inputs: list[torch.Tensor], known: list[torch.Tensor]) -> Any:
    """A result as data: values, layouts, gradients, and which tensors share objects and memory."""
    if isinstance(value, torch.Tensor):
        positions = [k for k, other in enumerate(known) if other is value]
        shares = [k for k, t in enumerate([*inputs, *known]) if shares_memory(t, value)]
        meta = (value.dtype, tuple(value.shape), value.stride() if value.numel() > 1 else (), value.requires_grad)
        return (*meta, value.is_inference(), positions[:1], shares, value.detach())
    if isinstance(value, dict):
        return [(key, described(item, inputs, known)) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [described(item, inputs, known) for item in value]
    return type(value), value


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def outcome(function: Callable[..., Any], rows: int, needs_grad: bool, mode: Callable[[], Any]) -> Any:
    """All that a user sees of a call, and of a backward pass through its results."""
    torch.manual_seed(rows)
    leaves = [torch.randn(rows, 3, requires_grad=needs_grad) for _ in range(2)]
    inputs = [leaf * 1 for leaf in leaves]
    try:
        with mode():
            result = function(*inputs)
    except Exception as error:
        return type(error), str(error).splitlines()[0], [one.detach() for one in inputs]
    try:
        return [*acted_on(result, leaves, inputs), torch.rand(1)]
    except (RuntimeError, NotImplementedError) as error:  # autograd refuses what was done
        return type(error), str(error).splitlines()[0]


def acted_on(result: Any, leaves: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    """The results as data, and what a backward pass through them leaves."""
    found = tensors_of(result)
    seen = [described(result, inputs, found), [one.detach() for one in inputs]]
    wanted = [one for one in found if one.requires_grad and one.grad_fn is not None]
    if wanted:
        sum((one.abs() if one.is_complex() else one).pow(2).sum() for one in wanted).backward()  # type: ignore[union-attr]
        seen += [[leaf.grad for leaf in leaves], [one.grad for one in found if one.retains_grad]]
    return seen


def agree(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same, tensors up to the last bits."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=2e-5, atol=2e-5)
        return True
    if isinstance(one, (tuple, list)) and type(one) is type(other):
        return len(one) == len(other) and all(map(agree, one, other))
    return bool(type(one) is type(other) and one == other)


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


@pytest.mark.sampled(21)
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.parametrize(
    ("program", "way"),
    in_turn(PROGRAMS, [("auto", None), ("eager", None), ("auto", True)]),
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_equal_at_all_sizes(program: Callable[..., Any], way: tuple[str, bool | None]) -> None:
    backend, dynamic = way
    compiled = framesmith.compile(program, backend=backend, recompile_limit=30, dynamic=dynamic)
    for needs_grad, mode in ((False, contextlib.nullcontext), (True, contextlib.nullcontext), (True, torch.no_grad)):
        for rows in SIZES:
            SEEN[:] = [rows]
            expected = outcome(program, rows, needs_grad, mode)
            SEEN[:] = [rows]
            found = outcome(compiled, rows, needs_grad, mode)
            assert agree(found, expected), f"{rows} rows, {needs_grad}:\n{found}\n{expected}"


def test_threads_meet_sizes_at_once() -> None:
    compiled = framesmith.compile(views_of_result, recompile_limit=30)
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for rows in range(start, start + 12):
                x = torch.full((rows, 3), float(rows))
                whole, part, flat = compiled(x, x)
                assert whole.shape == x.shape and part.shape[0] == rows // 3 and flat.sum() == rows * 3 * rows * rows
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (2, 5, 9, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("shape", [(1, 4), (1, 6), (3, 5)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.split([1, x.shape[1] - 1], 1)[1].fliplr(),
        lambda x: x.split([x.shape[1] - 1, 1], 1)[0].flip(1),
        lambda x: x.split([1, x.shape[1] - 1], 1)[1].flip(0),
        lambda x: x[:, 1:].flip(1) * x.shape[1],
    ],
)
def test_gradients_of_a_single_row(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, int]) -> None:
    """Its stride is not what the trace took it for: no length may be read off it."""
    x = torch.randn(shape, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    framesmith.reset()
    framesmith.compile(function, dynamic=True, strict=True)(x).sum().backward()
    function(other).sum().backward()
    assert torch.equal(x.grad, other.grad)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[2:], lambda x: x.view(3, 2)])
def test_where_a_leaf_and_its_view_begin(view: Callable[[torch.Tensor], torch.Tensor], dynamic: bool | None) -> None:
    """Both in one storage, in which the leaf begins further on."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return x * 2, y.sum() + x[2:].sum(), y + x.storage_offset(), x + y.storage_offset()

    framesmith.reset()
    compiled = framesmith.compile(function, dynamic=dynamic, strict=True)
    for at in (1, 3, 1):
        leaf = torch.arange(60.0).view(6, 10)[:, at].contiguous().repeat(2)[at : at + 6].detach().requires_grad_()
        found, wanted = compiled(leaf, view(leaf)), function(leaf, view(leaf))
        torch.testing.assert_close(found, wanted)
