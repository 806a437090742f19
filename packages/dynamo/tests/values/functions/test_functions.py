"""Functions: binding, closures, defaults, partials, decorators, context managers; recompilation when they change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(4.0)


def every_kind(a: Any, b: Any = 2, /, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **more: Any) -> Any:
    return a, b, c, rest, d, e, sorted(more.items())


def trace_calls(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) + 1

    return wrapper


@trace_calls
def decorated(x: Any, k: int = 2) -> Any:
    return x * k


@contextlib.contextmanager
def scaled(log: list[str], factor: float) -> Iterator[float]:
    log.append("in")
    try:
        yield factor
    finally:
        log.append("out")


def binding(x: Any) -> Any:
    first = every_kind(x, d=4)
    second = every_kind(x, 1, 2, 3, 4, d=0, z=9, y=8)
    third = every_kind(*(x, 7), d=1, c=0)
    return first, second, third


def binding_errors(x: Any) -> Any:
    messages = []
    for args, kwargs in (((), {}), ((1, 2, 3), {"a": 1}), ((1,), {"d": 1, "c": 2, "b": 3})):
        try:
            every_kind(*args, **kwargs)
        except TypeError:
            messages.append(len(args))
    try:
        (lambda q: q)(1, 2)
    except TypeError:
        messages.append(99)
    return x + 1, messages


def closures(x: Any) -> Any:
    total = x * 0
    seen = []

    def add(value: Any, weight: Any = x) -> Any:
        nonlocal total
        total = total + value * weight
        seen.append(value)
        return total

    adders = [lambda v, k=k: add(v * k) for k in range(3)]
    return [a(2.0) for a in adders], total, seen


def recursion(x: Any) -> Any:
    def power(n: int) -> Any:
        return x if n == 0 else power(n - 1) * 2

    return power(4)


def partials(x: Any) -> Any:
    add = functools.partial(every_kind, x, d=1)
    again = functools.partial(add, 5, e=6)
    return again(7), again.func is every_kind, again.args[1:], sorted(again.keywords)


def decorators(x: Any) -> Any:
    @trace_calls
    def inner(y: Any) -> Any:
        """Doc."""
        return y * 3

    wrapped = inner.__wrapped__(x)  # type: ignore[attr-defined]
    return decorated(x), inner(x), inner.__name__, inner.__doc__, decorated.__name__, wrapped


def context_managers(x: Any) -> Any:
    log: list[str] = []
    with scaled(log, 3.0) as f, contextlib.suppress(ValueError):
        x = x * f
        raise ValueError
    with contextlib.nullcontext(2) as k:
        x = x + k
    return x, log


def functions_as_values(x: Any) -> Any:
    table = {"relu": torch.relu, "neg": lambda t: -t, "double": functools.partial(torch.mul, 2)}
    results = [fn(x - 1) for fn in table.values()]
    return results, callable(table["neg"]), table["relu"] is torch.relu


def attributes(x: Any) -> Any:
    def counter() -> Any:
        counter.calls = getattr(counter, "calls", 0) + 1  # type: ignore[attr-defined]
        return counter.calls  # type: ignore[attr-defined]

    counter()
    return x + counter(), counter.__code__.co_argcount, counter.__defaults__ is None if False else 0


def star_and_mixed(x: Any) -> Any:
    head, *middle, last = (lambda *a: a)(1, *[2, 3], 4)
    return x * head + last, middle, max(3, *middle), dict(a=1, b=2)


PROGRAMS = [
    binding,
    binding_errors,
    closures,
    recursion,
    partials,
    decorators,
    context_managers,
    functions_as_values,
    attributes,
    star_and_mixed,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(program: Any) -> None:
    subject = check(program, X)
    assert not subject.of_kind("break"), [str(event.broken) for event in subject.of_kind("break")]


def test_returned_closure_works_outside() -> None:
    def program(x: Any) -> Any:
        count = 0

        def bump(step: int = 2) -> Any:
            nonlocal count
            count += step
            return x + count

        bump()
        return bump

    subject = compiled(program)
    for _ in range(2):
        bump = subject(X)
        assert torch.equal(bump(), X + 4)
        assert torch.equal(bump(step=1), X + 5)


def test_code_of_a_global_function_is_guarded() -> None:
    namespace: dict[str, Any] = {}

    def old(x: Any) -> Any:
        return x + 1

    def new(x: Any) -> Any:
        return x + 2

    namespace["helper"] = old

    def program(x: Any) -> Any:
        return namespace["helper"](x)

    subject = compiled(program)
    assert torch.equal(subject(X), X + 1)
    namespace["helper"] = new
    assert torch.equal(subject(X), X + 2)
    new.__code__ = (lambda x: x + 3).__code__
    assert torch.equal(subject(X), X + 3)


def test_variables_that_get_their_value_later() -> None:
    def outer(wrap: Callable[..., Any]) -> list[Any]:
        def own(a):
            try:
                return a * late
            except NameError:
                return a - 1

        def callee(a):
            return a * late  # noqa: F821

        def of_callee(a):
            try:
                return callee(a) + 1
            except NameError:
                return a

        first, second = wrap(own), wrap(of_callee)
        results = [first(3), second(3)]
        for value in (5, 7):
            late = value
            results += [first(3), second(3)]
            del late
            results += [first(3), second(3)]
        return results

    assert outer(compiled) == outer(lambda fn: fn)


def test_closure_contents_and_defaults_are_guarded() -> None:
    factor = 2.0

    def scale(x: Any, bias: float = 1.0) -> Any:
        return x * factor + bias

    subject = compiled(lambda x: scale(x))
    assert torch.equal(subject(X), X * 2 + 1)
    factor = 3.0
    assert torch.equal(subject(X), X * 3 + 1)
    scale.__defaults__ = (5.0,)
    assert torch.equal(subject(X), X * 3 + 5)


def test_identity_of_functions_with_the_same_code() -> None:
    def make() -> Any:
        return lambda x: x

    first, second = make(), make()
    subject = compiled(lambda x, f: x + 1 if f is first else x + (2 if {first: 1}.get(f) else 3))
    assert torch.equal(subject(X, first), X + 1)
    assert torch.equal(subject(X, second), X + 3)
    assert torch.equal(subject(X, first), X + 1)


def test_nonlocal_of_a_caller_is_written_back() -> None:
    calls = 0

    def program(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x + 1

    subject = compiled(program)
    for _ in range(3):
        subject(X)
    assert calls == 3


def test_user_cache_is_filled_by_the_real_call() -> None:
    @functools.lru_cache
    def slow(n: int) -> int:
        return n * 2

    subject = compiled(lambda x: x + slow(3))
    assert torch.equal(subject(X), X + 6)
    assert torch.equal(subject(X), X + 6)
    assert slow.cache_info().hits == 1


def test_closure_made_in_a_callee_works_outside() -> None:
    def make(x: Any) -> Any:
        count = 0

        def bump(step: int = 2) -> Any:
            nonlocal count
            count += step
            return x + count

        bump()
        return bump, lambda: count

    subject = compiled(lambda x: (make(x * 2), x + 1)[0])
    for _ in range(2):
        bump, read = subject(X)
        assert read() == 2
        assert torch.equal(bump(step=3), X * 2 + 5)
        assert read() == 5


class Callable3:
    """Three."""

    def __init__(self) -> None:
        self.note = 3

    def __call__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "wrapped", [len, torch.relu, str.upper, decorated, Callable3(), functools.partial(decorated, 3)]
)
def test_wraps_of_any_callable(wrapped: Any) -> None:
    def program(x: Any) -> Any:
        @functools.wraps(wrapped)
        def made(y: int) -> int:
            return y

        @functools.wraps(made, assigned=("__name__",))
        def again(y: int) -> int:
            return y

        return x + 1, made, again, made.__wrapped__ is wrapped  # type: ignore[attr-defined]

    _, *expected, same = program(X)
    _, *found, same_too = compiled(program)(X)
    names = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__")
    for one, other in zip(expected, found, strict=True):
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert vars(one).keys() == vars(other).keys()
    assert same and same_too


def test_attributes_of_a_wrapped_function_are_relied_on() -> None:
    def wrapped() -> None: ...

    def program(x: Any) -> Any:
        @functools.wraps(wrapped)
        def made() -> None: ...

        return x + 1, made

    subject = compiled(program)
    assert set(vars(subject(X)[1])) == {"__wrapped__"}
    wrapped.note = 1  # type: ignore[attr-defined]
    assert set(vars(subject(X)[1])) == {"__wrapped__", "note"}


def test_parts_of_functions_made_in_the_trace() -> None:
    def program(x: Any) -> Any:
        def first(a: int, b: str = "b", *, c: float = 2.0) -> list[int]:
            """Doc."""
            return [a]

        def second(a: int) -> None: ...

        def third(a): ...  # type: ignore[no-untyped-def]

        first.__annotations__["extra"] = x
        second.__annotations__ = None  # type: ignore[assignment]
        third.__annotations__["late"] = 1
        known = first.__defaults__, second.__defaults__, first.__doc__, first.__annotations__ is first.__annotations__
        return x + 1, first, second, third, known, second.__annotations__

    for fn in (program, compiled(program)):
        _, first, second, third, known, none = fn(X)
        assert list(first.__annotations__) == ["a", "b", "c", "return", "extra"] and first.__annotations__["extra"] is X
        assert known == (("b",), None, "Doc.", True) and first.__kwdefaults__ == {"c": 2.0}
        assert second.__annotations__ == none == {} and third.__annotations__ == {"late": 1}


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__annotations__"])
def test_attributes_of_functions_that_python_checks(name: str) -> None:
    def program(x: Any) -> Any:
        def made() -> None: ...

        setattr(made, name, 3)
        return x + 1

    check(program, X)
