"""Programs like those of public code on which the compiler once failed: none fails, all equal eager.

`strict=True`: a failure inside the compiler is an error. Every other program is compiled again for each call; in long
runs, `FRAMESMITH_LONG=1`, all are compiled both once and for each call.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import io
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from integration_tests.harness.differential import Case, check
from integration_tests.harness.sweeps import in_turn

X = torch.arange(3.0)
Program = Callable[[], Case]
LOOPS: dict[str, Program] = {}
TYPES: dict[str, Program] = {}
UNHASHABLE: dict[str, Program] = {}


def program(family: dict[str, Program]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function, called twice with the same and twice with other arguments; as a function and as a module."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        class Around(nn.Module):
            def forward(self, x: Any) -> Any:
                return fn(x)

        def calls() -> list[tuple[Any, ...]]:
            inputs = X.clone(), X + 1, torch.ones(4), torch.ones(3, dtype=torch.float64)
            return [(one,) for one in (*inputs, X.clone().requires_grad_())]

        family[fn.__name__] = lambda: Case(fn, calls())
        family[f"{fn.__name__}_module"] = lambda: Case(Around(), calls())
        return fn

    return add


def pause() -> None:
    """Break the graph."""
    print(end="")


# ---- loops whose iterator is an argument of a continuation ----


class Breaking:
    """`iter` of it breaks the graph."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        pause()
        return iter(range(self.count))


class Counting:
    """An iterator of its own, which breaks the graph at each step."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        pause()
        self.count -= 1
        if self.count < 0:
            raise StopIteration
        return self.count


@program(LOOPS)
def breaks_in_iter(x: Any) -> Any:
    x = x + 1
    for i in Breaking(3):
        x = x + i
    return x


@program(LOOPS)
def breaks_in_next(x: Any) -> Any:
    for i in Counting(3):
        x = x[torch.arange(3)] + i
    return x


@program(LOOPS)
def nested(x: Any) -> Any:
    for i in Breaking(2):
        for j in Breaking(2):
            for k in Counting(2):
                x = x + i + j + k
            else:
                x = x * 2
    return x


@program(LOOPS)
def two_breaks_and_else(x: Any) -> Any:
    for i in [1, 2, 3]:
        pause()
        x = x + i
        for j in (4, 5):
            x = x * j
            pause()
    else:
        pause()
        x = x + 1
    return x


@program(LOOPS)
def left_behind_a_break(x: Any) -> Any:
    for i in [1, 2, 3]:
        for j in [4, 5]:
            if i == 2:
                pause()
                x = x + j
                break
        else:
            x = x + 7
            continue
        break
    for k in iter([1, 2]):
        x = x + k
    return x


@program(LOOPS)
def next_beside_the_loop(x: Any) -> Any:
    it = iter([1, 2, 3, 4, 5])
    for i in it:
        x = x + i
        pause()
        x = x * next(it, 7)
    return x, list(it)


@program(LOOPS)
def while_with_an_iterator(x: Any) -> Any:
    it = iter([1, 2, 3])
    while True:
        try:
            value = next(it)
        except StopIteration:
            break
        x = x + value
        pause()
    return x


@program(LOOPS)
def in_try_and_with(x: Any) -> Any:
    try:
        for i in Breaking(3):
            with torch.no_grad():
                x = x + i
                pause()
            if i == 2:
                raise ValueError
    except ValueError:
        for j in itertools.count():
            x = x + j
            pause()
            if j == 2:
                break
    finally:
        for k in reversed([1, 2]):
            pause()
            x = x + k
    return x


@program(LOOPS)
def comprehensions(x: Any) -> Any:
    listed = [x + i + j for i in Breaking(3) for j in Breaking(i)]
    return listed, {i: x + i for i in Counting(3)}, list(x + i for i in Counting(2)), sum(x + i for i in Breaking(2))


@program(LOOPS)
def adapters_and_views(x: Any) -> Any:
    d = {1: 2, 3: 4}
    for i, (a, b) in enumerate(zip(Breaking(2), map(abs, [-1, -2]), strict=False)):
        x = x + i * a + b
        pause()
    for key, value in d.items():
        pause()
        x = x + key * value
    for value in itertools.chain(d, d.values(), filter(None, Breaking(2))):
        x = x + value
        pause()
    return x


@program(LOOPS)
def files_and_tensors(x: Any) -> Any:
    for line in io.StringIO("a\nbb\n"):
        x = x + len(line)
        pause()
    for one in x:
        x = x + one
        pause()
    for number in x.tolist():
        x = x + number
    return x


@program(LOOPS)
def generators(x: Any) -> Any:
    def count(n: int) -> Iterator[int]:
        yield from range(n)
        pause()

    for i in count(3):
        x = x + i
        pause()
    for i in (j for j in Breaking(3)):
        x = x + i
    return x


@program(LOOPS)
def breaks_in_the_iterable(x: Any) -> Any:
    for i in pause() or [1, 2]:
        x = x + i
        for j in pause() or [3]:
            x = x + j
    return x


# ---- types, classes and members as arguments of operations ----


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Holder:
    kind = torch.FloatTensor


@program(TYPES)
def float_tensor(x: Any) -> Any:
    return x.type(torch.FloatTensor) + 1


@program(TYPES)
def tensor_types(x: Any) -> Any:
    return [
        x.type(t) * 2 for t in (torch.DoubleTensor, torch.IntTensor, torch.BFloat16Tensor, torch.Tensor, Holder.kind)
    ]


@program(TYPES)
def changed_behind_a_type(x: Any) -> Any:
    y = x.type(torch.FloatTensor)
    return y.mul_(2) if not y.requires_grad else y


@program(TYPES)
def types_by_name(x: Any) -> Any:
    return (
        x.type("torch.DoubleTensor"),
        x.type(torch.float64),
        x.type(),
        x.type(dtype="torch.LongTensor"),
        x.type(x.type()),
    )


@program(TYPES)
def types_tested(x: Any) -> Any:
    return isinstance(x, torch.FloatTensor), isinstance(x, torch.DoubleTensor), x.type_as(torch.ones(1).double())


@program(TYPES)
def types_called(x: Any) -> Any:
    return torch.FloatTensor([1.0, 2.0]) + x.sum(), torch.LongTensor([1, 2]), torch.Tensor(2, 3).shape


@program(TYPES)
def new_of_a_tensor(x: Any) -> Any:
    return x.new(2, 3).shape, x.new([1, 2]) + 1, x.new_tensor([1, 2]), x.new_zeros(2, dtype=bool)


@program(TYPES)
def python_classes_as_dtypes(x: Any) -> Any:
    return torch.zeros(2, dtype=float), torch.ones(2, dtype=int), x.detach().to(complex), x.sum(dtype=float)


@program(TYPES)
def refused_types(x: Any) -> Any:
    return x.type(Holder)


@program(TYPES)
def types_that_are_not_there(x: Any) -> Any:
    return x.type(torch.cuda.FloatTensor)


@program(TYPES)
def default_type(x: Any) -> Any:
    torch.set_default_tensor_type(torch.DoubleTensor)
    try:
        return torch.ones(2) + x.sum()
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)


@program(TYPES)
def layouts_formats_and_sizes(x: Any) -> Any:
    made = torch.zeros(x.size(), layout=torch.strided, device=torch.device("cpu"))
    return (
        made,
        x.clone(memory_format=torch.contiguous_format),
        x[..., None],
        x[slice(0, 2)],
        x.expand(torch.Size([2, *x.size()])),
    )


@program(TYPES)
def members(x: Any) -> Any:
    return x + (Bits.ONE | Bits.TWO), x * Bits(0), x.unsqueeze(Bits.ONE), torch.full((2,), Bits.TWO)


@program(TYPES)
def functions_and_strange_numbers(x: Any) -> Any:
    return x.detach().clone().apply_(abs), x * complex(float("inf"), 1.0), x * float("nan"), x * complex(-0.0, 0.0)


# ---- objects without a hash, and those whose methods have effects ----


class Unhashable:
    def __init__(self, value: int = 1) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable) and self.value == other.value


class Raising:
    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")

    def __hash__(self) -> int:
        raise ValueError("hash")

    def __bool__(self) -> bool:
        raise ValueError("bool")

    def __repr__(self) -> str:
        raise ValueError("repr")


class Noted:
    """Counts how often it is compared or hashed."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Noted.count += 1
        return self is other

    def __hash__(self) -> int:
        Noted.count += 1
        return 5


class Index:
    """Made as pandas makes its own."""

    def __new__(cls, data: Any = None, **options: Any) -> Index:
        made = object.__new__(cls)
        made.options = cls._settle(**options) if options else {}
        made.data = data
        return made

    @classmethod
    def _settle(cls, **options: Any) -> dict[str, Any]:
        return {**options, "cls": cls.__name__}


class Named(Index):
    def __new__(cls, data: Any = None, names: Any = None, **options: Any) -> Named:
        return super().__new__(cls, data, **{**options, "names": names})


class Callable_:
    __hash__ = None

    def __call__(self, x: Any) -> Any:
        return x + 1

    def __enter__(self) -> Callable_:
        return self

    def __exit__(self, *exc: object) -> bool:
        return False


@dataclasses.dataclass
class Settings:
    sizes: list[int] = dataclasses.field(default_factory=list)
    more: dict[Any, Any] = dataclasses.field(default_factory=dict)


UN, RAISING, NOTED, CALLED = Unhashable(), Raising(), Noted(), Callable_()
HELD = types.SimpleNamespace(un=UN, options={}, raising=RAISING, pair=(RAISING, UN))
SETTINGS = Settings([1], {2: 3})


@program(UNHASHABLE)
def made_by_new(x: Any) -> Any:
    return Index(x, a=[1], b={}).options, Named({1: 2}, ["n"], c=set()).options, x + 1


@program(UNHASHABLE)
def made_classes(x: Any) -> Any:
    made = type("Made", (), {"a": [1], "b": {}})
    return made.a, made.b, made().a, x + 1


@functools.lru_cache
def _cached(value: Any) -> Any:
    return value


@program(UNHASHABLE)
def refused_by_caches_and_keys(x: Any) -> Any:
    errors = []
    for step in (
        lambda: _cached({}),
        lambda: {}[Unhashable()],
        lambda: Unhashable() in {1},
        lambda: {Unhashable(): 1},
        lambda: {Unhashable()},
        lambda: frozenset([[1]]),
        lambda: hash({}),
    ):
        try:
            step()
        except TypeError as error:
            errors.append(str(error))
    return errors, x + 1


@program(UNHASHABLE)
def compared(x: Any) -> Any:
    return Unhashable() in [1, Unhashable()], [Unhashable(2), UN].index(Unhashable()), [UN].count(UN), x + UN.value


@program(UNHASHABLE)
def held(x: Any, un: Any = UN, *, raising: Any = RAISING) -> Any:
    def inner() -> Any:
        return un.value + HELD.un.value

    partial = functools.partial(lambda a, b: a.value + b, un)
    return x + inner(), partial(x), HELD.raising is raising, HELD.pair[0] is RAISING


@program(UNHASHABLE)
def raising_methods(x: Any) -> Any:
    errors = []
    for step in (lambda: RAISING == 1, lambda: {RAISING: 1}, lambda: bool(RAISING), lambda: repr(RAISING)):
        try:
            step()
        except ValueError as error:
            errors.append(str(error))
    return errors, x + 1


@program(UNHASHABLE)
def never_asked_of_its_own_accord(x: Any) -> Any:
    before = Noted.count
    same = NOTED is NOTED, isinstance(NOTED, Noted), [NOTED, x][1], (NOTED,)[0] is NOTED
    untouched = Noted.count - before
    found = NOTED in {NOTED: 1}
    return same, untouched, found, Noted.count - before, x + 1


@program(UNHASHABLE)
def passed_across_a_break(x: Any) -> Any:
    un, raising = Unhashable(3), RAISING
    pause()
    x = x + un.value
    pause()
    return x, raising is RAISING


@program(UNHASHABLE)
def called_and_entered(x: Any) -> Any:
    with CALLED, Callable_():
        pause()
        x = CALLED(x)
    return x, list(map(CALLED, [x])), functools.reduce(lambda a, b: CALLED(a), [x, x])


@program(UNHASHABLE)
def dataclasses_with_containers(x: Any) -> Any:
    new = dataclasses.replace(SETTINGS, sizes=[5])
    return (
        Settings([1], {2: 3}) == SETTINGS,
        dataclasses.asdict(new),
        x + SETTINGS.sizes[0],
        dataclasses.fields(new)[0].name,
    )


@program(UNHASHABLE)
def copied(x: Any) -> Any:
    return (
        copy.copy(UN) == UN,
        copy.deepcopy({"a": UN})["a"].value,
        min([UN, Unhashable(0)], key=lambda u: u.value).value,
        x,
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "cold"), in_turn([*LOOPS, *TYPES, *UNHASHABLE], [False, True]))
@pytest.mark.filterwarnings("ignore:.*nothing of it is compiled")
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
def test_equals_eager(name: str, cold: bool) -> None:
    counters = check({**LOOPS, **TYPES, **UNHASHABLE}[name], cold=cold, strict=True)
    assert counters["frames_failed"] == 0, counters


# ---- recurrent layers ----
