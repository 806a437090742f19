"""Code that runs in place of a frame: its arguments, globals, closure, and its appearance in tracebacks."""

import sys
import traceback
import types

import pytest

import framesmith_frames as frames
from framesmith_frames import _hook

pytestmark = pytest.mark.usefixtures("either_way")


def run(callback, function, *args, **kwargs):
    """Twice: once through the callback and once from the cache."""
    with frames.activated(callback):
        first = function(*args, **kwargs)
        second = function(*args, **kwargs)
    assert first == second
    return second


def test_every_kind_of_argument(replacing):
    def original(a, /, b, c=3, *rest, d, e=5, **more):
        raise AssertionError

    def replacement(a, /, b, c=3, *rest, d, e=5, **more):
        return a, b, c, rest, d, e, more

    callback = replacing({original: replacement})
    assert run(callback, original, 1, 2, d=4) == (1, 2, 3, (), 4, 5, {})
    assert run(callback, original, 1, 2, 9, 8, 7, d=4, e=6, z=1) == (1, 2, 9, (8, 7), 4, 6, {"z": 1})
    assert frames.stats(original).hits == 3


def test_more_locals_cells_and_stack_than_the_original(replacing):
    def original(x, y):
        return None

    def replacement(x, y):
        a, b, c, d, e, f, g, h = range(8)
        inner = lambda: x + y + a + b + c + d + e + f + g + h  # noqa: E731
        return [inner(), [a, b, c, [d, e, [f, g, [h, [x, [y, [a, [b, c, d, e, f, g, h]]]]]]]]]

    assert run(replacing({original: replacement}), original, 100, 200)[0] == 328


def test_fewer_locals_than_the_original(replacing):
    def original(x, y):
        a, b, c, d = x, y, x, y
        return lambda: (a, b, c, d)

    def replacement(x, y):
        return y

    assert run(replacing({original: replacement}), original, 1, 2) == 2


def test_closure_and_globals_are_the_functions_own(replacing):
    def make(value):
        def original(x):
            return value, x

        return original

    def make_replacement(value):
        def replacement(x):
            return "new", value, x, marker  # noqa: F821

        return replacement

    functions = make(1), make(2)
    for number, function in enumerate(functions):
        code = make_replacement(0).__code__
        copy = types.FunctionType(function.__code__, {"marker": number}, closure=function.__closure__)
        callback = replacing({function: make_replacement(0)})
        callback.codes[function.__code__] = code
        assert run(callback, copy, 5) == ("new", number + 1, 5, number)


def test_a_cell_can_be_rebound_from_replaced_code(replacing):
    def counter():
        count = 0

        def original():
            nonlocal count
            count += 1
            return count

        def replacement():
            nonlocal count
            count += 100
            return 0

        return original, replacement, lambda: count

    original, replacement, read = counter()
    run(replacing({original: replacement}), original)
    assert read() == 200


def test_methods_classmethods_and_super(replacing):
    class Base:
        def name(self):
            return "base"

    class Derived(Base):
        def name(self):
            return __class__, "derived"

        def new_name(self):
            return "new " + super().name()

        @classmethod
        def made(cls):
            return cls

        @classmethod
        def new_made(cls):
            return cls.__name__

    callback = replacing({Derived.made.__func__: Derived.new_made.__func__})
    assert run(callback, Derived.made) == "Derived"
    callback = replacing({Derived.name: Derived.new_name})
    assert run(callback, Derived().name) == "new base"


def test_callees_of_replaced_code_are_offered_and_the_code_is_not(replacing):
    def helper():
        return 1

    def original():
        return 0 if helper else 1

    def replacement():
        return helper()

    callback = replacing({original: replacement})
    assert run(callback, original) == 1
    assert callback.asked == ["original", "helper"]
    assert frames.skip_reason(replacement).startswith("residual code of ")
    assert "original" in frames.skip_reason(replacement)


def test_a_complete_entry_runs_with_the_hook_off(replacing):
    def helper():
        return 1

    def original():
        return 0 if helper else 1

    def replacement():
        return helper()

    callback = replacing({original: replacement}, complete=True)
    assert run(callback, original) == 1
    assert callback.asked == ["original"]
    with frames.activated(callback):
        original()
        helper()
    assert callback.asked == ["original", "helper"]


def test_an_entry_may_keep_the_code(replacing):
    def original(x):
        return x

    callback = replacing({original: original})
    assert run(callback, original, 3) == 3
    assert frames.stats(original).hits == 1
    assert frames.skip_reason(original) is None


def test_recursion_through_replaced_code(replacing):
    def original(n):
        return original

    def replacement(n):
        return 0 if n == 0 else 1 + original(n - 1)

    callback = replacing({original: replacement})
    assert run(callback, original, 50) == 50
    assert frames.stats(original).hits == 101


def test_an_exception_arrives_unchanged_with_one_line_for_the_frame(replacing):
    error = ValueError("planted")

    def original():
        return error

    def replacement():
        raise error

    with frames.activated(replacing({original: replacement})):
        for _ in range(2):
            error.__traceback__ = None
            with pytest.raises(ValueError) as caught:
                original()
            assert caught.value is error
            assert caught.value.__context__ is None
            lines = traceback.extract_tb(caught.value.__traceback__)
            assert [line.name for line in lines] == [
                "test_an_exception_arrives_unchanged_with_one_line_for_the_frame",
                "replacement",
            ]
            assert lines[1].line == "raise error"


def test_the_stack_shows_one_frame_with_the_new_code(replacing):
    def original():
        return None

    def replacement():
        frame = sys._getframe()
        return frame.f_code.co_name, frame.f_back.f_code.co_name

    assert run(replacing({original: replacement}), original) == ("replacement", "run")


def test_a_frame_object_outlives_the_call(replacing):
    kept = []

    def original(x):
        return kept

    def replacement(x):
        kept.append(sys._getframe())
        y = x * 2
        return y

    assert run(replacing({original: replacement}), original, 21) == 42
    assert kept[0].f_locals == {"x": 21, "y": 42, "kept": kept}
    assert kept[1].f_code is replacement.__code__


def test_arguments_die_when_the_call_is_over(replacing):
    import weakref

    class Thing:
        pass

    def original(thing):
        return None

    def replacement(thing):
        return 7

    callback = replacing({original: replacement})
    with frames.activated(callback):
        for _ in range(3):
            thing = Thing()
            dead = weakref.ref(thing)
            original(thing)
            del thing
            assert dead() is None


def test_called_from_generators_comprehensions_and_c(replacing):
    def original(x):
        return x

    def replacement(x):
        return -x

    def values():
        for i in range(4):
            yield original(i)

    callback = replacing({original: replacement})
    with frames.activated(callback):
        assert list(values()) == [0, -1, -2, -3]
        assert [original(i) for i in range(4)] == [0, -1, -2, -3]
        assert list(map(original, range(4))) == [0, -1, -2, -3]
        assert sorted(range(4), key=original) == [3, 2, 1, 0]
        assert original(*[5]) == original(**dict(x=5)) == -5


def test_a_replaced_init(replacing):
    class Point:
        def __init__(self, x):
            self.x = x

    def init(self, x):
        self.x = x + 1

    def use():
        return {Point(1).x for _ in range(50)}

    use.__code__ = use.__code__.replace(co_name="use")  # nothing is specialised yet
    assert use() == {1}  # specialises the call site
    with frames.activated(replacing({Point.__init__: init})):
        assert [point.x for point in map(Point, [1, 2])] == [2, 3]
        assert use() == ({1} if _hook.specialised_init_bypasses_hook else {2})
    assert use() == {1}


def test_replaced_operators_at_specialised_call_sites(replacing):
    class Point:
        def __getitem__(self, key):
            return key

        def __add__(self, other):
            return "old"

        @property
        def size(self):
            return "old"

        def method(self):
            return "old"

    class Missing:
        def __getattribute__(self, name):
            return "old"

    def keywords(*, a, b):
        return "old"

    def positional(a, b):
        return "old"

    def getitem(self, key):
        return ("new", key)

    def new(self):
        return "new"

    def add(self, other):
        return "new"

    def getattribute(self, name):
        return "new"

    def new_keywords(*, a, b):
        return "new"

    def new_positional(a, b):
        return "new"

    pairs = {Point.__getitem__: getitem, Point.__add__: add, Point.size.fget: new, Point.method: new}
    pairs |= {Missing.__getattribute__: getattribute, keywords: new_keywords, positional: new_positional}
    point, missing, bound, both = Point(), Missing(), Point().method, (1, 2)

    def use():
        return {
            *[("item", point[2]) for _ in range(50)],
            *[("add", point + 1) for _ in range(50)],
            *[("property", point.size) for _ in range(50)],
            *[("method", point.method()) for _ in range(50)],
            *[("bound", bound()) for _ in range(50)],
            *[("attribute", missing.any) for _ in range(50)],
            *[("keywords", keywords(a=1, b=2)) for _ in range(50)],
            *[("starred", positional(*both)) for _ in range(50)],
        }

    use.__code__ = use.__code__.replace(co_name="use")
    kinds = ["add", "property", "method", "bound", "attribute", "keywords", "starred"]
    old = {("item", 2), *((kind, "old") for kind in kinds)}
    assert use() == old
    with frames.activated(replacing(pairs)):
        assert use() == {("item", ("new", 2)), *((kind, "new") for kind in kinds)}
    assert use() == old
