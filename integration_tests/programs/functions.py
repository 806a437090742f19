"""Calls, arguments, closures, classes and strings."""

import collections
import dataclasses
import enum
import functools
import itertools
import math
import operator

import torch

from integration_tests.harness.differential import Case

_SCALE = 3.0


def argument_binding() -> Case:
    def g(a, b, /, c, *rest, d=4, e, **more):
        return a + b * c + len(rest) + d * e + sum(more.values()), sorted(more)

    def f(x: torch.Tensor, n: int):
        one = g(x, 2, 3, e=n)
        two = g(x, *[1, 2, 3, 4], e=5, z=n, d=0)
        return one, two

    return Case(f, [(torch.randn(2), 1), (torch.randn(2), 2), (torch.randn(2), 1)])


def called_with_keywords() -> Case:
    def f(x: torch.Tensor, *, scale: float = 2.0, **kwargs):
        return x * scale + kwargs["bias"], list(kwargs)

    return Case(f, [(torch.randn(2),)] * 3, kwargs={"bias": torch.ones(2), "scale": 0.5, "unused": None})


def closures_and_nonlocal() -> Case:
    def make():
        count = 0

        def f(x: torch.Tensor):
            nonlocal count
            count += 1

            def inner(y):
                return y * count + offset

            offset = 10
            first = inner(x)
            offset = 20
            return first, inner(x), count

        return f

    return Case(make(), [(torch.randn(2),)] * 4)


def closure_returned() -> Case:
    def f(x: torch.Tensor, n: int):
        def scaled(y):
            return y * n + x

        return scaled(x), [g(2) for g in [lambda k: k + n, lambda k: k * n]]

    return Case(f, [(torch.randn(2), 2), (torch.randn(2), 3), (torch.randn(2), 2)])


def global_constant_changes() -> Case:
    def f(x: torch.Tensor, scale: float):
        global _SCALE
        before = x * _SCALE
        _SCALE = scale
        return before, x * _SCALE

    return Case(f, [(torch.randn(2), 3.0), (torch.randn(2), 4.0), (torch.randn(2), 3.0)])


def partial_and_decorators() -> Case:
    def twice(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(fn(*args, **kwargs), **kwargs)

        return wrapper

    @twice
    def step(x, k=1.0):
        return x * k + 1

    halved = functools.partial(step, k=0.5)

    def f(x: torch.Tensor):
        return halved(x), step(x), step.__name__, functools.reduce(operator.add, [1, 2, 3])

    return Case(f, [(torch.randn(2),)] * 3)


class _Shape:
    sides = 0

    def __init__(self, size: float) -> None:
        self.size = size

    @property
    def area(self) -> float:
        return self.size**2

    @classmethod
    def unit(cls) -> "_Shape":
        return cls(1.0)

    @staticmethod
    def double(x):
        return x * 2

    def describe(self, x):
        return x * self.area, f"{type(self).__name__} of {self.sides} sides, {self.size:.2f}"


class _Square(_Shape):
    sides = 4

    def __init__(self, size: float, tag: str = "sq") -> None:
        super().__init__(size)
        self.tag = tag

    def describe(self, x):
        value, text = super().describe(x)
        return self.double(value), f"{self.tag}: {text}"

    def __add__(self, other):
        return _Square(self.size + getattr(other, "size", other))

    def __len__(self) -> int:
        return self.sides

    def __getitem__(self, index):
        return index * self.size

    def __call__(self, x):
        return x - self.size


def classes_and_super() -> Case:
    def f(x: torch.Tensor, size: float):
        square = _Square(size)
        bigger = square + 1 + _Shape.unit()
        return square.describe(x), bigger.size, len(square), bigger[3], square(x), isinstance(bigger, _Shape)

    return Case(f, [(torch.randn(2), 2.0), (torch.randn(2), 3.0), (torch.randn(2), 2.0)])


@dataclasses.dataclass
class _Point:
    x: torch.Tensor
    scale: float = 1.0
    tags: list = dataclasses.field(default_factory=list)


class _Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


_Pair = collections.namedtuple("_Pair", ["left", "right"])


def dataclass_enum_namedtuple() -> Case:
    def f(x: torch.Tensor, mode: _Mode):
        point = _Point(x, scale=2.0 if mode is _Mode.FAST else 0.5)
        point.tags.append(mode.value)
        pair = _Pair(point.x * point.scale, right=mode)
        left, right = pair
        return point, pair.left + 1, left, right.name, pair._replace(left=1).left

    return Case(f, [(torch.randn(2), _Mode.FAST), (torch.randn(2), _Mode.SLOW), (torch.randn(2), _Mode.FAST)])


def strings_and_formatting() -> Case:
    def f(x: torch.Tensor, name: str, n: int):
        text = f"{name!r:>8}|{n:03d}|{x.shape}|{x.dtype}" + "%s-%d" % (name.upper(), n) + "{}:{k}".format(n, k=name)  # noqa: UP031, UP032
        parts = text.split("|")
        return x * len(text), parts, "-".join(reversed(parts)), name.startswith("a"), text[1:3], name * 2

    return Case(f, [(torch.randn(2, 3), "abc", 7), (torch.randn(2, 3), "xyz", 8), (torch.randn(2, 3), "abc", 7)])


def builtins_and_itertools() -> Case:
    def f(x: torch.Tensor, items: list):
        pairs = list(zip(items, itertools.accumulate(items)))
        flat = list(itertools.chain.from_iterable(pairs))
        best = max(items, key=lambda v: -v)
        order = sorted(items, reverse=True)
        grid = [a * b for a, b in itertools.product(items[:2], items[-2:])]
        return x * best, flat, order, grid, any(v > 2 for v in items), all(items), divmod(items[-1], 2), math.sqrt(4.0)

    return Case(f, [(torch.randn(2), [3, 1, 2]), (torch.randn(2), [5, 4]), (torch.randn(2), [3, 1, 2])])


def tensor_metadata() -> Case:
    def f(x: torch.Tensor, y: torch.Tensor):
        if x.dtype == torch.float32 and not x.is_cuda and x.is_contiguous():
            y = y.to(x.dtype)
        batch, *rest = x.shape
        return (x.view(batch, -1) @ y, rest, x.size(), x.stride(0), x.ndim, x.device.type, len(x), x.requires_grad)

    y = torch.randn(6, 2, dtype=torch.float64)
    return Case(f, [(torch.randn(4, 2, 3), y), (torch.randn(3, 6), y), (torch.randn(4, 2, 3), y)])


def indexing_and_slicing() -> Case:
    def f(x: torch.Tensor, index: torch.Tensor):
        y = x[1:, ..., None]
        z = x[index]
        w = x[:, [0, 2]]
        out = torch.zeros_like(x)
        out[0] = x[0] * 2
        out[1:, 1] += 3
        return y, z, w, out, x[-1], x[0, 1:3], x[::2]

    return Case(f, [(torch.randn(4, 3), torch.tensor([2, 0])), (torch.randn(5, 3), torch.tensor([1]))] * 2)


def containers() -> Case:
    def f(x: torch.Tensor, nested: dict):
        a, (b, *c) = nested["items"]
        merged = {**nested, "extra": x + a}
        ordered = collections.OrderedDict(sorted(merged["sizes"].items()))
        ordered.move_to_end("a")
        groups = collections.defaultdict(list)
        for key, value in ordered.items():
            groups[value % 2].append(key)
        queue = collections.deque([1, 2, 3], maxlen=3)
        queue.append(4)
        return merged["extra"] * b, c, dict(groups), list(queue), {1, 2} | {3}, list(ordered), (1,) + (2, 3)

    nested = {"items": (1, [2, 3, 4]), "sizes": {"b": 2, "a": 1, "c": 3}}
    return Case(f, [(torch.randn(2), nested)] * 3)
