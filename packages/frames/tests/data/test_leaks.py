"""No leaks: reference counts, live objects and memory stay flat in loops over every path."""

import gc
import sys
import weakref
from pathlib import Path

import pytest
from checkers import Extracting, NativeExtracting

import framesmith_frames as frames

pytestmark = pytest.mark.usefixtures("either_way")


def original(a, *rest, **more):
    return a


def replacement(a, *rest, **more):
    b = [a, rest, more]
    return lambda: (a, b)


def with_inputs(checker, complete=False):
    return frames.Entry(checker, taking.__code__, complete=complete, inputs=True)


def taking(a, *rest, **more):
    inputs = (*inputs, rest, more)  # noqa: F821
    return inputs


def raising(a, *rest, **more):
    c = {"a": a}
    raise ValueError(c)


def resident_bytes():
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def answer_with(make):
    def callback(frame):
        return make(frame) if frame.code is original.__code__ else frames.SKIP("other")

    return callback


def fail(frame):
    raise RuntimeError("planted")


def ask(kind):
    return {
        "entry": lambda frame: frames.Entry(lambda args, function: True, replacement.__code__),
        "complete": lambda frame: frames.Entry(lambda args, function: True, replacement.__code__, complete=True),
        "raising": lambda frame: frames.Entry(lambda args, function: True, raising.__code__),
        "rejected": lambda frame: frames.Entry(lambda args, function: False, replacement.__code__),
        "failing check": lambda frame: frames.Entry(lambda args, function: 1 / 0, replacement.__code__),
        "inputs": lambda frame: with_inputs(Extracting(lambda *_: ([], {}))),
        "complete inputs": lambda frame: with_inputs(Extracting(lambda *_: ([], {})), complete=True),
        "native inputs": lambda frame: with_inputs(NativeExtracting(lambda *_: ([], {}))),
        "rejected inputs": lambda frame: with_inputs(Extracting(lambda *_: None)),
        "failing inputs": lambda frame: with_inputs(Extracting(lambda *_: 1 / 0)),
        "wrong inputs": lambda frame: with_inputs(NativeExtracting(lambda *_: [[]])),
        "skip": lambda frame: frames.SKIP("".join(["a", " reason"])),
        "run once": lambda frame: frames.RUN_ONCE("".join(["a", " reason"])),
        "returned": lambda frame: frames.RUN_ONCE("so", returned=lambda: frame),
        "not to return": lambda frame: frames.RUN_ONCE("so", returned=lambda: frame.nothing),
        "failing": fail,
        "nonsense": lambda frame: object(),
    }[kind]


KINDS = [
    *("entry", "complete", "raising", "rejected", "failing check", "skip", "run once", "failing", "nonsense"),
    *("returned", "not to return"),
    *("inputs", "complete inputs", "native inputs", "rejected inputs", "failing inputs", "wrong inputs"),
]


def not_heard(function, reason):
    raise ValueError(reason)


def one_round(callback, argument, compiled):
    for _ in range(2):
        for call in (original, compiled):
            try:
                with frames.activated(callback):
                    call(argument, argument, key=argument)
            except (ValueError, AttributeError):
                pass
    frames.reset()


REPORTS = [{}, {"on_eager": not_heard}, {"on_eager": not_heard, "refuses": True}]


@pytest.mark.parametrize("report", REPORTS, ids=["", "reported", "refused"])
@pytest.mark.parametrize("kind", KINDS)
def test_reference_counts_return(kind, report):
    frames.set_error_handler(lambda error, frame: None)
    callback = answer_with(ask(kind))
    compiled = frames.CompiledFunction(original, callback, **report)
    watched = [object(), callback, original, original.__code__, replacement.__code__, globals(), compiled]
    one_round(callback, watched[0], compiled)
    gc.collect()
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(30):
        one_round(callback, watched[0], compiled)
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched] == before


def test_objects_do_not_pile_up():
    frames.set_error_handler(lambda error, frame: None)
    callbacks = [answer_with(ask(kind)) for kind in KINDS]

    def rounds(count):
        for _ in range(count):
            for callback in callbacks:
                one_round(callback, object(), frames.CompiledFunction(original, callback))

    rounds(5)
    gc.collect()
    before = len(gc.get_objects())
    rounds(40)
    gc.collect()
    assert abs(len(gc.get_objects()) - before) < 20


@pytest.mark.parametrize("inputs", [False, True], ids=["", "with inputs"])
def test_memory_is_flat_over_compile_and_drop(inputs):
    template = compile("def f(x):\n    return x\n", "generated", "exec").co_consts[0]
    new = compile("def g(x):\n    return -x\n", "generated", "exec").co_consts[0]
    found = compile(
        "def h(x):\n    x = found and -x\n    found = x\n    return found\n", "generated", "exec"
    ).co_consts[0]
    kind = type(original)
    frames.skip(cycle_once, "the test itself")

    def callback(frame):
        if frame.code.co_filename == "generated" and inputs:
            return frames.Entry(Extracting(lambda args, _: ([args],)), found.replace(co_firstlineno=5), inputs=True)
        if frame.code.co_filename == "generated":
            return frames.Entry(lambda args, function: True, new.replace(co_firstlineno=5))
        return frames.SKIP("other")

    with frames.activated(callback):
        for i in range(4000):
            cycle_once(kind, template, i)
        before = resident_bytes()
        for i in range(100_000):
            cycle_once(kind, template, i)
    gc.collect()
    assert resident_bytes() - before < 2 << 20


def cycle_once(kind, template, i):
    function = kind(template.replace(co_firstlineno=i + 1), {})
    assert function(3) == -3
    assert function(4) == -4


def test_a_compiled_function_in_a_cycle_is_collected(replacing):
    callback = replacing({original: replacement}, complete=True)

    class Holder:
        pass

    holder = Holder()
    namespace = {"holder": holder}
    exec("def original(a):\n    return a\ndef replacement(a):\n    return holder, a", namespace)
    callback.codes[namespace["original"].__code__] = namespace["replacement"].__code__
    compiled = namespace["compiled"] = frames.CompiledFunction(namespace["original"], callback)
    holder.compiled = compiled
    assert compiled(1) == compiled(1) == (holder, 1)
    dead = [weakref.ref(compiled), weakref.ref(holder), weakref.ref(namespace["original"])]
    callback.codes.clear()
    del compiled, holder, namespace
    gc.collect()
    assert [reference() for reference in dead] == [None] * 3


def test_without_hook_in_a_cycle_is_collected():
    wrapper = frames.without_hook(lambda: None)
    wrapper.me = wrapper
    dead = weakref.ref(wrapper)
    del wrapper
    gc.collect()
    assert dead() is None


def test_the_globals_of_a_dropped_module_are_collected(replacing):
    """A cached entry holds no function and so no globals."""

    class Marker:
        pass

    namespace = {"marker": Marker()}
    exec("def f(x):\n    return x\ndef g(x):\n    return marker", namespace)
    callback = replacing({namespace["f"]: namespace["g"]})
    with frames.activated(callback):
        namespace["f"](1)
        namespace["f"](1)
    dead = weakref.ref(namespace["marker"])
    del namespace
    gc.collect()
    assert dead() is None
