"""Programs whose graph breaks: printed output, data-dependent branches, calls that cannot be traced.

And what `fullgraph`, `strict` do.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import Any

import pytest
import torch
from driver import check, compiled, run_eagerly, same

import framesmith_frames as frames
from framesmith_dynamo import BREAKS, BreakNotAllowed, FrameConverter, RecompileLimit, disable
from framesmith_dynamo.breaks import DATA_DEPENDENT, UNSUPPORTED_CALL, GraphBreak

X = torch.arange(6.0).reshape(2, 3)
Y = torch.linspace(-1, 1, 6).reshape(2, 3)


def prints(x, y):
    z = x + y
    print("sum", tuple(z.shape))
    w = z * 2
    print("done", end="!\n")
    return w - y


def prints_unpacked(x, values, options):
    z = x + 1
    print(*values, **options)
    with contextlib.suppress(TypeError):
        print(z.shape, *values, end="!\n", **options)
        print(*values, **options, unknown=3)
    return z * 2


def prints_in_loop(x, n):
    for i in range(n):
        x = x * 2
        print(i, x.sum().item())
        x = x + i
    return x


def prints_before_and_after_loop(x, n):
    print("start")
    for i in range(n):
        x = x + i
    print("end")
    return x * 2


def branch_on_data(x, y):
    z = x @ y.T
    if z.sum() > 0:
        z = z - 1
    else:
        z = z + 1
    return z * 2


def boolean_operators_on_data(x, y):
    return (x.sum() > 0 and y.sum() > 5) or x.mean()


def while_on_data(x):
    while x.sum() < 100:
        x = x * 2 + 1
    return x


def assert_on_data(x):
    if not x.sum() > 0:
        raise AssertionError("not positive")
    return x * 2


def item_as_number(x, y):
    n = int(x.max().item())
    return y * n, n


def nested_break(x, y):
    def inner(t):
        t = t + 1
        print("inner", t.shape)
        return t * 2

    a = inner(x)
    b = inner(a + y)
    return a + b


def break_with_pending_stack(x, y):
    def loud(v):
        print("loud", v)
        return v

    return [x + 1, loud(2), {"k": (y * loud(3), loud(4))}], f"{loud(5)}-{loud('s')}"


def break_in_comprehension(x):
    return [print(i) or x * i for i in range(3)]


def break_in_comprehension_with_closures(x):
    i = x + 1

    def own():
        return i

    made = [(lambda: i, print(i))[0] for i in range(3)]
    nested = [([(lambda: i, print(i))[0] for i in range(2)], lambda: i) for i in (7, 8)]
    with contextlib.suppress(ZeroDivisionError):
        [(lambda: i, print(i), 1 // i) for i in (1, 0)]
    return [f() for f in made], [([f() for f in inner], f()) for inner, f in nested], own()


def raising_break_in_comprehension(x):
    i = x + 1

    def own():
        return i

    with contextlib.suppress(TypeError):
        [(lambda: i, print(i, unknown=3)) for i in range(1)]
    return own(), (lambda: i)(), [(lambda: i)() for i in range(2)]


def break_in_comprehension_over_free_variable(x):
    i = 1

    def own():
        nonlocal i
        made = [(lambda: i, print(i))[0] for i in range(2)]
        return [f() for f in made], x * i

    return own(), own()


def break_on_data_in_comprehension(x):
    return {i: f() for i, f in {i: (lambda: x * i) for i in range(3) if x.sum() > i}.items()}


def break_keeps_closures(x):
    total = 0

    def add(v):
        nonlocal total
        total += v
        return total

    add(1)
    print(total)
    add(2)
    print(total)
    return x * total, add


def break_between_mutations(x, items, d):
    items.append(x + 1)
    print(len(items))
    items.append(len(items))
    d["k"] = items
    print(sorted(d))
    del d["k"]
    d["z"] = items[0] * 2
    return items


def unbound_until_later(x, flag):
    if flag:
        late = x + 1
    print("break")
    if flag:
        return late
    try:
        return late
    except UnboundLocalError as error:
        return x, str(error)


def break_in_method_call(x, items):
    items.sort(key=lambda v: print("key", v) or -v)
    return x + items[0]


def break_in_with(x, box):
    with torch.no_grad():
        y = x * 2
        print("inside", y.requires_grad)
    return y + 1


def break_in_try(x):
    try:
        y = x + 1
        print("try")
        raise KeyError("k")
    except KeyError as error:
        print("except", error)
        y = x - 1
    finally:
        print("finally")
    return y


def grad_mode_left_changed(x):
    y = x * 2
    torch.set_grad_enabled(False)
    z = y * 3
    print(torch.is_grad_enabled(), z.requires_grad)
    w = z + x
    torch.set_grad_enabled(True)
    return w, y + x


def nonzero(x):
    found = (x > 1).nonzero()
    return found.shape[0], x[x > 2], found + 1


def tolist(x):
    return x.tolist(), [float(v) for v in x[0]]


def random_numbers(x):
    random.seed(3)
    return x * random.random(), torch.rand(2)


def warns(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("careful")
    return x + 1


def class_inside(x):
    class Local:
        factor = 3

        def scaled(self, t):
            return t * self.factor

    return Local().scaled(x)


def many_breaks(x):
    print(1)
    x = x + 1
    print(2)
    x = x + 2
    print(3)
    x = x + 3
    print(4)
    return x


PROGRAMS: list[tuple[Any, tuple[Any, ...]]] = [
    (prints, (X, Y)),
    (prints_unpacked, (X, (1, "two"), {"sep": "-"})),
    (prints_in_loop, (X, 3)),
    (prints_before_and_after_loop, (X, 3)),
    (branch_on_data, (X, Y)),
    (branch_on_data, (X, -Y)),
    (boolean_operators_on_data, (X, Y)),
    (boolean_operators_on_data, (-X, Y)),
    (while_on_data, (X,)),
    (assert_on_data, (X,)),
    (assert_on_data, (-X,)),
    (item_as_number, (X, Y)),
    (nested_break, (X, Y)),
    (break_with_pending_stack, (X, Y)),
    (break_in_comprehension, (X,)),
    (break_in_comprehension_with_closures, (X,)),
    (raising_break_in_comprehension, (X,)),
    (break_in_comprehension_over_free_variable, (X,)),
    (break_on_data_in_comprehension, (X,)),
    (break_keeps_closures, (X,)),
    (break_between_mutations, (X, [1], {"a": 1})),
    (unbound_until_later, (X, True)),
    (unbound_until_later, (X, False)),
    (break_in_method_call, (X, [2, 3, 1])),
    (break_in_with, (X, None)),
    (break_in_try, (X,)),
    (grad_mode_left_changed, (X.clone().requires_grad_(),)),
    (nonzero, (X,)),
    (tolist, (X,)),
    (random_numbers, (X,)),
    (warns, (X,)),
    (class_inside, (X,)),
    (many_breaks, (X,)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_equals_eager(program: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = program
    found = check(fn, *args, dynamic=False)
    assert found.of_kind("break") or fn in (random_numbers,), "the program was meant to break"
    check(fn, *args)  # where data may become numbers, some do not
    for event in found.of_kind("break"):
        assert event.broken is not None
        assert BREAKS[event.broken.kind.id] is event.broken.kind


def test_graphs_before_and_after_a_break() -> None:
    found = check(prints, X, Y)
    assert found.calls == ["add", "mul", "sub"]
    assert len(found.graphs) == 3


def test_both_sides_of_a_branch_are_compiled_when_they_run() -> None:
    frames.reset()
    subject = compiled(branch_on_data)
    for y in (Y, -Y, Y, X):
        assert same(subject(X, y), branch_on_data(X, y))
    assert subject.calls.count("sum") == 1


def test_fullgraph_raises_and_names_the_break() -> None:
    frames.reset()
    with pytest.raises(BreakNotAllowed, match=r"(?s)print.*what to do") as caught:
        compiled(prints, fullgraph=True)(X, Y)
    assert caught.value.broken.kind.id in BREAKS


def test_disabled_functions_run_eagerly() -> None:
    def helper(t):
        return t + len([1 for _ in t])

    disable(helper.__code__)

    def f(x):
        return helper(x * 2) * 3

    found = check(f, X)
    assert found.calls == ["mul", "mul"]


def test_recompile_limit() -> None:
    def f(x, n):
        return x * n

    frames.reset()
    subject = compiled(f, recompile_limit=3, strict=False, dynamic=False)
    for n in range(6):
        assert same(subject(X, n), X * n)
    assert len(subject.of_kind("entry")) == 3
    [limit] = subject.of_kind("limit")
    assert "expected 2, found 3" in limit.detail and "L['n'] has changed 3 times" in limit.detail
    assert limit.detail == subject.of_kind("skip")[0].detail
    frames.reset()
    strict = compiled(f, recompile_limit=1, strict=True, dynamic=False)
    strict(X, 1)
    with pytest.raises(RecompileLimit, match="expected 1, found 2"):
        strict(X, 2)


def test_recompilation_is_explained_against_the_nearest_entry() -> None:
    def f(x, n):
        return x * n

    frames.reset()
    subject = compiled(f)
    subject(X, 1)
    subject(X.double(), 1)
    subject(X.double(), 5)
    first, second = subject.of_kind("recompile")
    assert "dtype" in first.detail
    assert "expected 1, found 5" in second.detail
    assert "dtype" not in second.detail


def test_a_failing_compiler_leaves_the_function_to_python() -> None:
    def broken_compiler(module, inputs):
        raise RuntimeError("planted")

    def f(x):
        return x + 1

    frames.reset()
    events: list[Any] = []
    converter = FrameConverter(broken_compiler, on_event=events.append)
    with frames.activated(converter):
        results = [f(X), f(X)]
    assert same(results, [X + 1, X + 1])
    assert [event.kind for event in events].count("error") == 1


def test_bad_options_are_refused() -> None:
    with pytest.raises(TypeError, match="compile_graph is a callable"):
        FrameConverter(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="recompile_limit is at least 1"):
        FrameConverter(run_eagerly, recompile_limit=0)


def test_a_method_waiting_for_its_call_survives_a_break() -> None:
    class Holder:
        def __init__(self):
            self.added = []
            self.plain = lambda v: v * 10

        def add(self, *values):
            self.added.extend(values)
            return self.added

    def loud(v):
        print("loud", v)
        return v

    def f(x, holder, items):
        items.append(loud(1))
        text = "-".join([loud("a"), loud("b")])
        return holder.add(loud(2), x + holder.plain(loud(3))), items, text, super(Holder, holder).__eq__(loud(5))

    found = check(f, X, Holder(), [0])
    assert found.of_kind("break")


class First:
    pass


class Second:
    pass


named: type = First


def name_second():
    global named
    named = Second


def first_of(first, *others):
    return first


def waits_at_a_break(x):
    y = x + 1
    return first_of((named,), name_second(), print(end="")), y * 2


def test_what_waits_on_the_stack_is_of_before_the_mutations() -> None:
    global named
    kept = compiled(waits_at_a_break)(X)[0]
    assert (kept, named) == ((First,), Second)
    named = First


def test_an_attribute_that_breaks_is_looked_up_once() -> None:
    class Loud:
        def __getattribute__(self, name):
            print("looked up", name)
            return lambda v: v + 1

    loud = Loud()

    def f(x):
        return loud.method(x * 2) + loud.other(x)

    check(f, X)


def test_deep_recursion_is_no_error() -> None:
    def f(x, n):
        def down(k):
            return x if k == 0 else down(k - 1) + 1

        return down(n)

    check(f, X, 120, strict=False)


def test_state_changed_before_a_break_is_no_new_assumption() -> None:
    frames.reset()
    subject = compiled(grad_mode_left_changed)
    x = X.clone().requires_grad_()
    for _ in range(3):
        assert same(subject(x), grad_mode_left_changed(x))
    assert not subject.of_kind("recompile")


def test_functions_that_see_their_own_locals() -> None:
    def names(x, n):
        y = x + n
        seen = sorted(locals())
        return y, seen, sorted(vars()), eval("n + 1"), "y" in dir()

    def calls(x):
        z = x * 2
        return names(z, 3), sorted(locals())

    check(names, X, 1)
    check(calls, X)


def test_a_function_that_always_raises_is_left_to_python() -> None:
    def f(x):
        y = x + 1
        raise ValueError(len(y))

    frames.reset()
    subject = compiled(f)
    for _ in range(20):
        with pytest.raises(ValueError):
            subject(X)
    assert len(subject.of_kind("run-once")) == 16
    assert len(subject.of_kind("skip")) == 1


def test_untraceable_objects_are_passed_along() -> None:
    import threading

    lock = threading.Lock()

    def helper(x, guard, *more):
        return x * 2, guard is lock, guard is None, isinstance(guard, int), [guard, *more]

    def f(x, guard):
        y, same_lock, none, number, items = helper(x + 1, guard, guard)
        kept = {"lock": guard}
        return y, same_lock, none, number, items[0] is items[1], kept["lock"] is lock

    frames.reset()
    subject = compiled(f, fullgraph=True)
    assert same(subject(X, lock), f(X, lock))
    assert same(subject(X, lock), f(X, lock))
    assert same(subject(X, None), f(X, None))
    assert len(subject.of_kind("entry")) == 2

    def held(x):
        with lock:
            y = x * 2
            assert lock.locked()
        return y + 1, lock.locked()

    check(held, X)


def test_breaks_without_an_instruction_are_one_for_each_kind() -> None:
    first, second = (GraphBreak(UNSUPPORTED_CALL, f"a call with {count} arguments") for count in (1, 2))
    assert first.site == second.site != GraphBreak(DATA_DEPENDENT).site
