"""`set_interest_filter`: which calls are offered to a callback, and which run eagerly, watched or not."""

import functools
import gc
import random
import subprocess
import sys
import threading
import types
import weakref
from types import MappingProxyType

import pytest

import framesmith_frames as frames

#: A package that callbacks are interested in.
library = types.ModuleType("library")
sub = types.ModuleType("library.sub")


class Thing:
    __module__ = "library.sub"

    def touch(self):
        return 1


class Derived(Thing):
    __module__ = "elsewhere"


class Holder:
    def __init__(self, held=None):
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


#: Deeper than names are followed.
SHELF = Holder(Holder(Thing()))


def make():
    return Thing()


make.__module__ = "library"
library.make = make
library.sub = sub


class Asked:
    """A callback interested in `library`; notes what it is asked about and answers all alike."""

    def __init__(self, answer=frames.RUN_ONCE):
        self.names = []
        self.answer = answer
        frames.set_interest_filter(self, ("library",))

    def __call__(self, frame):
        self.names.append(frame.code.co_name)
        return self.answer("noted")


def outermost(function, *args, **kwargs):
    return function(*args, **kwargs)


def asked_about(function, *args, times=1, **kwargs):
    """What a callback is asked about in these calls, below the function that is always asked about."""
    return asked_in(Asked(), function, args, kwargs, times)


def asked_in(asked, function, args, kwargs=MappingProxyType({}), times=1):
    for _ in range(times):
        with frames.activated(asked):
            outermost(function, *args, **kwargs)
    return [name for name in asked.names if name != "outermost"]


def plain(a=None, b=None):
    return a


def variadic(*args, **kwargs):
    return len(args)


def nothing_given():
    return plain(1)


UNINTERESTING = {
    "nothing": (),
    "numbers": (1, 2.5),
    "containers": ([1, "two"], {"three": (3,)}),
    "an object": (Holder([1, 2]),),
    "a class": (Holder,),
    "another module": (gc,),
    "a builtin": (len,),
    "a registry of classes": ({Thing: 1},),
    "a like-named module": (types.ModuleType("library_of_others"),),
}
INTERESTING = {
    "an instance": Thing(),
    "one of a derived class": Derived(),
    "a class": Derived,
    "the package": library,
    "a module of it": sub,
    "a function of it": make,
    "a bound method": Thing().touch,
    "in a list": [1, Thing()],
    "in a dict": {"a": Thing()},
    "in a tuple in a list": [(Thing(),)],
    "an attribute": Holder(Thing()),
    "a slot": Slotted(Thing()),
    "an attribute's attribute": Holder(Holder(Thing())),
    "a partial's argument": functools.partial(plain, Thing()),
    "a closure": (lambda thing: lambda: thing)(Thing()),
    "a generator's local": (thing for thing in [Thing()]),
}


@pytest.mark.parametrize("name", list(UNINTERESTING))
def test_left_alone(name):
    asked = Asked()
    assert asked_in(asked, plain, UNINTERESTING[name], times=40) == []
    assert frames.stats(plain).filtered == 40
    assert asked_about(variadic, *UNINTERESTING[name], times=40) == []


@pytest.mark.parametrize("name", list(INTERESTING))
def test_asked_about(name):
    assert asked_about(plain, INTERESTING[name]) == ["plain"]
    assert asked_about(plain, 1, b=INTERESTING[name]) == ["plain"]
    assert asked_about(variadic, 1, INTERESTING[name]) == ["variadic"]
    assert asked_about(variadic, word=INTERESTING[name]) == ["variadic"]


@pytest.mark.parametrize("already", [1, 3, 5, 64, 100, 1000])
def test_a_thing_turns_up_after_calls_without(already):
    asked = Asked()
    with frames.activated(asked):
        nothing_given()
        for _ in range(already):
            plain(1, [2])
        assert asked.names == ["nothing_given"]
        plain(Thing())
    assert asked.names == ["nothing_given", "plain"]


def test_what_holds_a_thing_is_met_at_last():
    asked = Asked(frames.SKIP)
    holder = Holder(Thing())
    with frames.activated(asked):
        nothing_given()
        for _ in range(1000):
            plain(1)
        for _ in range(16):
            plain(holder)
    assert asked.names == ["nothing_given", "plain"]


def test_code_that_names_the_package():
    names = {"library": library, "sub": sub, "make": make, "THINGS": [Thing()], "REGISTRY": {Thing: 1}, "other": gc}
    sources = {
        "def by_module(): return library.sub": True,
        "def by_function(): return make()": True,
        "def by_content(): return THINGS[0]": True,
        "def by_nested(): return [sub for i in range(2)]": True,
        "def by_registry(): return len(REGISTRY)": False,
        "def by_other(): return other.isenabled()": False,
        "def caller(): return by_function()": True,
    }
    for source, interesting in sources.items():
        exec(source, names)
        function = list(names.values())[-1]
        assert bool(asked_about(function)) == interesting, source
    sys.modules["library"] = library
    try:
        exec("def imports():\n    import library\n    return library", alone := {})
        assert asked_about(alone["imports"]) == ["imports"]
    finally:
        del sys.modules["library"]


def test_a_global_filled_later():
    names = {"CACHE": {}}
    exec("def get(): return len(CACHE)", names)
    assert asked_about(names["get"], times=3) == []
    names["CACHE"]["a"] = Thing()
    assert asked_about(names["get"]) == ["get"]


def test_the_first_call_is_asked_about_and_so_is_its_code_from_then_on():
    asked = Asked()
    with frames.activated(asked):
        nothing_given()
        nothing_given()
        with frames.deactivated():
            plain()
        plain()
    assert asked.names == ["nothing_given", "nothing_given"]


def test_always_ask():
    def code():
        return 1

    frames.always_offer(code)
    assert asked_about(code) == ["code"]
    with pytest.raises(TypeError, match="expected a code object"):
        frames.always_offer(3)


def test_a_compiled_function_is_asked_about_and_its_uninteresting_callees_are_not():
    asked = Asked()
    compiled = frames.CompiledFunction(nothing_given, asked)
    for _ in range(10):
        compiled()
    assert asked.names == ["nothing_given"] * 10


def test_other_callbacks_are_asked_about_everything():
    Asked()
    names = []

    def everything(frame):
        names.append(frame.code.co_name)
        return frames.SKIP("seen")

    with frames.activated(everything):
        nothing_given()
    assert names == ["nothing_given", "plain"]


def test_entries_of_other_arguments_do_not_make_uninteresting_calls_asked_about():
    def doubled(a=None, b=None):
        return 2

    asked = []

    def callback(frame):
        asked.append(frame.code.co_name)
        if frame.code is plain.__code__:
            return frames.Entry(lambda args, function: type(args[0]) is Thing, doubled.__code__)
        return frames.SKIP("other")

    frames.set_interest_filter(callback, ("library",))

    def program():
        return [plain(Thing()), plain(1), plain("x"), plain(Thing())]

    with frames.activated(callback):
        assert program() == [2, 1, "x", 2]
    assert asked == ["program", "plain"]


def test_a_callback_into_interesting_code_is_found_inside_calls_left_alone():
    def apply(function, values):
        for value in values:
            inner(function, value)

    def inner(function, value):
        return function(value)

    def program(function):
        return apply(function, [1, 2])

    def harmless(value):
        return value

    things = [Thing()]

    def interesting(value):
        return things[0]

    asked = Asked()
    with frames.activated(asked):
        for _ in range(50):
            program(harmless)
        assert asked.names == ["program"] * 50
        program(interesting)
    assert asked.names[51:] == ["apply", "inner", "interesting", "inner", "interesting"]


def test_calls_are_no_longer_watched_when_nothing_was_found_in_several():
    states = []

    def deep():
        return plain()

    def shallow():
        states.append(frames.hook_state()["on_top"])
        return deep()

    def program():
        return shallow()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
        assert frames.hook_state()["on_top"]
    # Watched: four calls to trust it, and the closer looks at calls 8 and 16.
    assert states == [index in (1, 2, 3, 4, 8, 16) for index in range(1, 21)]


def test_calls_in_which_something_was_found_stay_watched():
    def deep():
        return plain(SHELF.held.held)

    def shallow():
        return deep()

    def program():
        return shallow()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
    assert asked.names == ["program", "plain"] * 20


def test_a_callback_set_inside_an_unwatched_call_sees_calls():
    inner_asked = []

    def everything(frame):
        inner_asked.append(frame.code.co_name)
        return frames.RUN_ONCE("seen")

    def deep():
        with frames.activated(everything):
            plain()
        return nothing_given()

    def program():
        return deep()

    def outer():
        return program()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            outer()
        assert frames.hook_state()["on_top"]
    assert inner_asked == ["plain"] * 20
    assert asked.names == ["outer"] * 20


def test_a_compiled_function_inside_an_unwatched_call_is_hooked():
    asked_inside = Asked()
    compiled = frames.CompiledFunction(lambda thing: plain(thing), asked_inside)
    things = Holder(Thing())

    def deep(index):
        return compiled(things.held if index > 10 else index)

    def program(index):
        return deep(index)

    asked = Asked()
    with frames.activated(asked):
        for index in range(20):
            program(index)
    assert asked_inside.names.count("<lambda>") == 20
    assert asked_inside.names.count("plain") == 9


def test_exceptions_recursion_and_generators_inside_calls_left_alone():
    def fails(depth):
        if depth == 0:
            raise KeyError("deep")
        return fails(depth - 1)

    def numbers(count):
        yield from range(count)
        plain(count)

    def program(index):
        with pytest.raises(KeyError):
            fails(index % 7)
        return sum(numbers(index))

    asked = Asked()
    with frames.activated(asked):
        for index in range(100):
            assert program(index) == sum(range(index))
        assert frames.hook_state()["on_top"]
    assert set(asked.names) == {"program"}


def test_deep_recursion_left_alone():
    def down(depth):
        return 0 if depth == 0 else 1 + down(depth - 1)

    def program(depth):
        return down(depth)

    asked = Asked()
    with frames.activated(asked):
        for _ in range(10):
            assert program(800) == 800
            with pytest.raises(RecursionError):
                program(sys.getrecursionlimit() + 10)
    assert set(asked.names) == {"program"}


def test_reset_and_a_new_filter_start_afresh():
    asked = Asked()
    with frames.activated(asked):
        nothing_given()
        for _ in range(10):
            plain()
    frames.reset()
    assert frames.stats(plain).filtered == 0
    frames.set_interest_filter(asked, ("another",))
    other = type("Other", (), {"__module__": "another.module"})()
    with frames.activated(asked):
        nothing_given()
        plain(Thing())
        plain(other)
    assert asked.names == ["nothing_given", "nothing_given", "plain"]


def test_reset_inside_a_watched_call():
    def deep():
        frames.reset()

    def program():
        deep()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(10):
            program()
    assert asked.names == ["program"]


def test_what_is_looked_at_is_neither_run_nor_kept():
    class Watching:
        def __getattribute__(self, name):
            raise AssertionError("looked at by running code")

        __iter__ = __len__ = __eq__ = __hash__ = None

    objects = [Watching(), [Watching()], {"a": Watching()}]
    assert asked_about(plain, *objects[:2], times=20) == []
    held = Holder(Holder())
    reference = weakref.ref(held)
    count = sys.getrefcount(held)
    assert asked_about(plain, held, times=20) == []
    assert sys.getrefcount(held) == count
    del held
    assert reference() is None


def test_a_class_that_becomes_interesting():
    class Base:
        pass

    class Late(Base):
        pass

    late = Late()
    assert asked_about(plain, late) == []
    Late.__bases__ = (type("Interesting", (Base,), {"__module__": "library"}),)
    assert asked_about(plain, late) == ["plain"]


@pytest.mark.parametrize("wrong", [("library",), ("x", ["library"]), ("x", (1,)), (len, ("\ud800",))])
def test_wrong_arguments(wrong):
    with pytest.raises((TypeError, UnicodeEncodeError)):
        frames.set_interest_filter(*wrong)


def test_a_dead_callbacks_filter_is_dropped():
    for _ in range(200):
        asked = Asked()
        with frames.activated(asked):
            nothing_given()
        reference = weakref.ref(asked)
        del asked
        gc.collect()
        assert reference() is None
    assert frames.stats(plain).filtered == 0


def test_threads_left_alone_and_not():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    errors = []

    def work(seed):
        chosen = random.Random(seed)
        asked = Asked()

        def deep(value):
            return plain(value)

        def program(value):
            return deep(value)

        try:
            expected = 0
            with frames.activated(asked):
                for _ in range(2000):
                    thing = chosen.random() < 0.01
                    program(Thing() if thing else 1)
                    expected += 1 + 2 * thing
                    if chosen.random() < 0.001:
                        gc.collect(0)
            assert len(asked.names) == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_thread_activated_while_another_runs_unwatched():
    ready, go = threading.Event(), threading.Event()
    asked = Asked()

    def other():
        mine = Asked()
        with frames.activated(mine):
            nothing_given()
            ready.set()
            go.wait(10)
            plain(SHELF.held.held)
        asked.other = mine.names

    def deep(last):
        if last:
            thread = threading.Thread(target=other)
            thread.start()
            ready.wait(10)
            go.set()
            thread.join()
        return 1

    def program(last):
        return deep(last)

    with frames.activated(asked):
        for index in range(11):
            program(index == 10)
        assert frames.hook_state()["on_top"]
    assert asked.other == ["nothing_given", "plain"]
    assert set(asked.names) == {"program"}


def test_tracing_sees_unwatched_calls():
    def deep():
        return 1

    def shallow():
        return deep()

    def program():
        return shallow()

    seen = []

    def tracer(frame, event, argument):
        seen.append((frame.f_code.co_name, event))

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
        sys.setprofile(tracer)
        try:
            program()
        finally:
            sys.setprofile(None)
    assert [name for name, event in seen if event == "call" and name in ("program", "shallow", "deep")] == [
        "program", "shallow", "deep",
    ]  # fmt: skip


def test_the_interpreter_ends_inside_an_unwatched_call():
    program = """
import sys
import framesmith_frames as frames
def callback(frame): return frames.SKIP("seen")
frames.set_interest_filter(callback, ("library",))
class Noisy:
    def __del__(self): shallow(0)
def deep(index):
    if index == 19:
        sys.exit(0)
def shallow(index): return deep(index)
def program(index): return shallow(index)
keep = Noisy()
frames.set_callback(callback)
for index in range(20): program(index)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
