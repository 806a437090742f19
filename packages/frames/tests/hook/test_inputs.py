"""Entries with inputs: the check's tuple is the first local after the arguments, and belongs to the code."""

import gc
import itertools
import sys
import threading
import time
import traceback
import weakref

import pytest
from checkers import Extracting, NativeExtracting

import framesmith_frames as frames

pytestmark = pytest.mark.usefixtures("either_way")


class Thing:
    """An object with weak references."""


def plain(a, b=2):
    return "eager"


def variadic(a, *rest, key=1, **more):
    return "eager"


def nothing():
    return "eager"


def own_cell(a, b=2):
    return "eager"


# Entries of these: the first local after the arguments is `found`, bound by the check alone.


def make(source, free=()):
    """The function of a source whose first new local is `found`, read before it is bound."""
    namespace = dict(free)
    exec(source, namespace)
    return namespace["entry"]


PLAIN = make("def entry(a, b=2):\n    if 0: found = 0\n    other = 1\n    return a, b, found, other")
VARIADIC = make("def entry(a, *rest, key=1, **more):\n    if 0: found = 0\n    return a, rest, key, more, found")
NOTHING = make("def entry():\n    if 0: found = 0\n    return found")
OWN_CELL = make("def entry(a, b=2):\n    if 0: found = 0\n    return (lambda: (a, b))(), found")

CALLS = [
    (plain, PLAIN, (5,), {}, (5, 2, ("in",), 1)),
    (plain, PLAIN, (5,), {"b": 7}, (5, 7, ("in",), 1)),
    (variadic, VARIADIC, (1, 2, 3), {"key": 4, "x": 5}, (1, (2, 3), 4, {"x": 5}, ("in",))),
    (nothing, NOTHING, (), {}, ("in",)),
    (own_cell, OWN_CELL, (1,), {}, ((1, 2), ("in",))),
]


def answering(original, entry, checker, complete=False):
    def callback(frame):
        if frame.code is original.__code__:
            return frames.Entry(checker, entry.__code__, complete=complete, inputs=True)
        return frames.SKIP("other")

    return callback


@pytest.fixture(params=[Extracting, NativeExtracting])
def checker(request):
    """Makes a checker, with the method or the capsule, that returns the result of a function."""
    return request.param


@pytest.fixture(params=["hook", "wrapper"])
def calling(request):
    """Calls a function with the hook on, or through a CompiledFunction."""

    def hook(original, callback, *args, **kwargs):
        with frames.activated(callback):
            return original(*args, **kwargs)

    def wrapper(original, callback, *args, **kwargs):
        return frames.CompiledFunction(original, callback)(*args, **kwargs)

    return {"hook": hook, "wrapper": wrapper}[request.param]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(("original", "entry", "args", "kwargs", "expected"), CALLS)
def test_the_inputs_arrive(checker, calling, original, entry, args, kwargs, expected, complete):
    callback = answering(original, entry, checker(lambda *_: ("in",)), complete)
    for _ in range(3):
        assert calling(original, callback, *args, **kwargs) == expected
    assert frames.entries(original)[0].inputs is True


def test_the_first_call_of_a_new_entry_has_inputs(checker, calling):
    fresh = checker(lambda args, function: (function, *args))
    result = calling(plain, answering(plain, PLAIN, fresh), 1, 2)
    assert result == (1, 2, (plain, 1, 2), 1)


def test_many_arguments(checker, calling):
    names = [f"a{i}" for i in range(40)]
    original = make(f"def entry({', '.join(names)}):\n    return 'eager'")
    entry = make(f"def entry({', '.join(names)}):\n    if 0: found = 0\n    return [{', '.join(names)}], found")
    callback = answering(original, entry, checker(lambda args, _: args[::-1]))
    for _ in range(3):
        assert calling(original, callback, *range(40)) == (list(range(40)), tuple(range(39, -1, -1)))


def test_a_free_variable_and_inputs(checker, calling):
    namespace = {}
    exec(
        "def outer(free):\n"
        "    def original(a):\n        free\n        return 'eager'\n"
        "    def entry(a):\n        if 0: found = 0\n        return a, free, found\n"
        "    return original, entry",
        namespace,
    )
    original, entry = namespace["outer"]("free")
    callback = answering(original, entry, checker(lambda *_: ("in",)))
    for _ in range(3):
        assert calling(original, callback, 1) == (1, "free", ("in",))


def test_an_entry_that_does_not_apply_is_passed(checker, calling):
    kinds = {int: checker(lambda args, _: ("int",) if type(args[0]) is int else None)}
    kinds[str] = checker(lambda args, _: ("str",) if type(args[0]) is str else None)

    def callback(frame):
        return frames.Entry(kinds[type(frame.arguments[0])], PLAIN.__code__, inputs=True)

    frames.skip(calling, "the test itself")
    for _ in range(3):
        assert calling(plain, callback, 1) == (1, 2, ("int",), 1)
        assert calling(plain, callback, "a") == ("a", 2, ("str",), 1)
    assert len(frames.entries(plain)) == 2


def test_entries_with_and_without_inputs_mix(checker, calling):
    extracting = checker(lambda args, _: ("in",) if args[0] == 1 else None)

    def callback(frame):
        if frame.arguments[0] == 1:
            return frames.Entry(extracting, PLAIN.__code__, inputs=True)
        return frames.Entry(lambda args, function: args[0] == 2, (lambda a, b=2: "without").__code__)

    for _ in range(3):
        assert calling(plain, callback, 1) == (1, 2, ("in",), 1)
        assert calling(plain, callback, 2) == "without"


# ---- construction ----


def test_code_without_a_local_for_the_inputs_is_refused():
    check = Extracting(lambda *_: ())
    for source in (
        "def entry(a): return a",
        "def entry(a):\n    found = 1\n    return lambda: found",
        "def entry(a, *rest, k, **more): return a",
    ):
        with pytest.raises(ValueError, match=r"first local variable of code entry after its \d arguments receives the"):
            frames.Entry(check, make(source).__code__, inputs=True)
    with pytest.raises(ValueError, match="no local there that is not a cell"):
        namespace = {}
        exec("def outer(free):\n    def entry(a): return free\n    return entry", namespace)
        frames.Entry(check, namespace["outer"](1).__code__, inputs=True)


def test_a_check_that_extracts_nothing_is_refused():
    with pytest.raises(TypeError, match=r"or a method extract\(args, function\); a function has neither"):
        frames.Entry(lambda args, function: True, PLAIN.__code__, inputs=True)
    holder = Thing()
    holder.extract = 7
    with pytest.raises(TypeError, match="a Thing has neither"):
        frames.Entry(holder, PLAIN.__code__, inputs=True)


@pytest.mark.parametrize("wrong", [True, ["in"], type("Sub", (tuple,), {})(("in",))])
def test_a_wrong_extraction_is_reported(checker, calling, wrong):
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(str(error)))
    assert calling(plain, answering(plain, PLAIN, checker(lambda *_: wrong)), 1) == "eager"
    assert seen and "must return a tuple of them, not " + type(wrong).__name__ in seen[0]


# ---- errors and references ----


def test_an_error_of_the_check_is_reported_and_the_call_runs_eagerly(calling):
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(type(error)))

    def fail(args, function):
        raise KeyError("planted")

    callback = answering(plain, PLAIN, Extracting(fail))
    assert calling(plain, callback, 1) == calling(plain, callback, 1) == "eager"
    assert seen == [KeyError, KeyError]


RAISING = make("def entry(a, b=2):\n    if 0: found = 0\n    kept = found\n    del found\n    raise ValueError(a)")


@pytest.mark.parametrize("complete", [False, True])
def test_an_exception_of_the_code_lets_the_inputs_go(checker, calling, complete):
    things = []

    def extract(args, function):
        thing = Thing()
        things.append(weakref.ref(thing))
        return (thing,)

    callback = answering(plain, RAISING, checker(extract), complete)
    for _ in range(3):
        with pytest.raises(ValueError) as raised:
            calling(plain, callback, 1)
        assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "entry"
        del raised
    gc.collect()
    assert things and [thing() for thing in things] == [None] * len(things)


def test_the_code_lets_go_by_deleting(checker, calling):
    """After `del found` the hook does not hold the inputs, while the frame goes on."""
    seen = []
    things = []
    entry = make(
        "def entry(a, b=2):\n"
        "    if 0: found = 0\n"
        "    before = alive()\n"
        "    del found\n"
        "    seen.append((before, alive()))",
        {"seen": seen, "alive": lambda: things[-1]() is not None},
    )

    def extract(args, function):
        thing = Thing()
        things.append(weakref.ref(thing))
        return (thing,)

    namespace = entry.__globals__
    original = type(plain)(plain.__code__, namespace, "plain", (2,))
    callback = answering(plain, entry, checker(extract))
    for _ in range(3):
        calling(original, callback, 1)
    assert seen == [(True, False)] * 3


def test_deleting_is_enough_in_a_nested_call(checker):
    """Each frame's inputs die when its own code deletes them, also with nested calls."""
    seen, things = [], {}
    namespace = {
        "seen": seen,
        "alive": lambda: tuple(sorted(n for n, thing in things.items() if thing() is not None)),
    }
    exec("def inner(n): pass\ndef outer(n): pass", namespace)
    entry = make("def entry(n):\n    if 0: found = 0\n    del found\n    seen.append(alive())", namespace)
    outer = make(
        "def entry(n):\n"
        "    if 0: found = 0\n"
        "    inner(n)\n"
        "    seen.append(alive())\n"
        "    del found\n"
        "    seen.append(alive())",
        namespace,
    )
    codes = {namespace["inner"].__code__: entry.__code__, namespace["outer"].__code__: outer.__code__}

    def extract(args, function):
        thing = Thing()
        things[function.__name__] = weakref.ref(thing)
        return (thing,)

    def callback(frame):
        if frame.code in codes:
            return frames.Entry(checker(extract), codes[frame.code], inputs=True)
        return frames.SKIP("other")

    namespace["outer"].__globals__.update(namespace)
    compiled = frames.CompiledFunction(namespace["outer"], callback)
    for _ in range(3):
        seen.clear()
        compiled(1)
        assert seen == [("outer",), ("outer",), ()]


@pytest.mark.parametrize("complete", [False, True])
def test_reference_counts_return(checker, calling, complete):
    thing, check = Thing(), checker(lambda *_: (thing, thing))
    callback = answering(plain, PLAIN, check, complete)

    def rounds(count):
        for _ in range(count):
            result = calling(plain, callback, thing)
            assert result[2] == (thing, thing)
            del result
            frames.reset()

    rounds(5)
    gc.collect()
    watched = [thing, check, callback, plain, PLAIN.__code__]
    before = [sys.getrefcount(item) for item in watched]
    rounds(50)
    gc.collect()
    assert [sys.getrefcount(item) for item in watched] == before


# ---- re-entrancy ----


def test_a_check_that_calls_the_function_again(calling):
    """While a checker runs the hook is off: the inner call is eager, the outer one gets its own inputs."""
    callback = answering(plain, PLAIN, Extracting(lambda args, function: (plain(args[0]),)))
    for _ in range(3):
        assert calling(plain, callback, 1) == (1, 2, ("eager",), 1)


def test_a_reset_inside_the_check_and_inside_the_code(checker, calling):
    entry = make(
        "def entry(a, b=2):\n    if 0: found = 0\n    reset()\n    return a, b, found", {"reset": frames.reset}
    )
    original = type(plain)(plain.__code__, entry.__globals__, "plain", (2,))

    def extract(args, function):
        frames.reset()
        return ("in",)

    callback = answering(plain, entry, checker(extract))
    for _ in range(5):
        assert calling(original, callback, 1) == (1, 2, ("in",))


def test_recursion_gives_each_frame_its_own_inputs(checker, calling):
    entry = make(
        "def entry(n):\n    if 0: found = 0\n    return [found] + (original(n - 1) if n else [])",
    )
    original = make("def entry(n):\n    return 'eager'")
    entry.__globals__["original"] = original
    original.__globals__.update(entry.__globals__)
    callback = answering(original, entry, checker(lambda args, _: (args[0],)))
    for _ in range(3):
        assert calling(original, callback, 4) == [(4,), (3,), (2,), (1,), (0,)]


# ---- threads ----


def test_threads_call_and_reset_at_once(checker):
    """Every call sees the inputs of its own arguments, while other threads reset and call."""
    callback = answering(plain, PLAIN, checker(lambda args, _: (args[0],)))
    compiled = frames.CompiledFunction(plain, callback)
    wrong, stop, interval = [], time.monotonic() + 1.0, sys.getswitchinterval()

    def work(first):
        with frames.activated(callback):
            for value in itertools.count(first, 8):
                if time.monotonic() > stop:
                    return
                expected = (value, 2, (value,), 1)
                wrong.extend(value for run in (plain, compiled) if run(value) != expected)
                if value % 7 == 0:
                    frames.reset()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_tracer_that_reads_the_locals(checker, calling):
    """A debugger sees the inputs as a local and does not change results."""
    seen = []

    def tracer(frame, event, argument):
        if frame.f_code.co_name == "entry":
            seen.append(frame.f_locals.get("found"))
            return tracer
        return None

    callback = answering(plain, PLAIN, checker(lambda *_: ("in",)))
    for _ in range(3):
        sys.settrace(tracer)
        try:
            result = calling(plain, callback, 1)
        finally:
            sys.settrace(None)
        assert result == (1, 2, ("in",), 1)
    assert ("in",) in seen
