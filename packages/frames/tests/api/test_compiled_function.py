"""CompiledFunction looks like a function; a call runs the entry that applies, without the hook if it is complete."""

import copy
import functools
import gc
import inspect
import pickle
import sys
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import framesmith_frames as frames


def echo(a, /, b, c=3, *rest, d, e=5, **more):
    """The documentation."""
    return "eager", a, b, c, rest, d, e, more


def compiled_echo(a, /, b, c=3, *rest, d, e=5, **more):
    return "compiled", a, b, c, rest, d, e, more


def few(a, b=2, c=3):
    return "eager", a, b, c


def compiled_few(a, b=2, c=3):
    return "compiled", a, b, c


def many(a, b, c, d, e, f, g, h, i, j, k, l=1, m=2, n=3, o=4, p=5, q=6, r=7, *, s=8, t):  # noqa: E741
    return "eager", locals()


def compiled_many(a, b, c, d, e, f, g, h, i, j, k, l=1, m=2, n=3, o=4, p=5, q=6, r=7, *, s=8, t):  # noqa: E741
    return "compiled", locals()


def nothing():
    return ("eager",)


def compiled_nothing():
    return ("compiled",)


PAIRS = {echo: compiled_echo, few: compiled_few, many: compiled_many, nothing: compiled_nothing}
NAMES = st.sampled_from([*"abcdefghijklmnopqrst", "zz"])


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("function", list(PAIRS))
@settings(deadline=None)
@given(args=st.lists(st.integers(), max_size=22), kwargs=st.dictionaries(NAMES, st.integers(), max_size=22))
def test_arguments_bind_as_in_an_ordinary_call(function, complete, args, kwargs):
    def callback(frame):
        if frame.code in codes:
            return frames.Entry(lambda args, function: True, codes[frame.code], complete=complete)
        return frames.SKIP("other")

    codes = {original.__code__: new.__code__ for original, new in PAIRS.items()}
    compiled = frames.CompiledFunction(function, callback)
    try:
        expected = function(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(TypeError) as caught:
            compiled(*args, **kwargs)
        assert str(caught.value) == str(error)
        return
    for _ in range(2):
        assert compiled(*args, **kwargs) == ("compiled", *expected[1:])


def test_the_callback_is_asked_only_when_nothing_applies(replacing):
    callback = replacing({few: compiled_few}, lambda args, function: args[0] > 0, complete=True)
    compiled = frames.CompiledFunction(few, callback)
    assert [compiled(1)[0], compiled(2, 5)[0], compiled(a=3)[0], compiled(-1)[0]] == ["compiled"] * 3 + ["eager"]
    assert callback.asked == ["few", "few"]
    assert frames.get_callback() is None
    counts = frames.stats(compiled)
    assert (counts.hits, counts.misses, counts.rejected) == (2, 2, 1)
    assert frames.entries(compiled) == frames.entries(few)


def test_the_hook_is_never_installed_for_a_complete_entry(replacing):
    states = []

    def original():
        return states, note

    def complete_one():
        states.append(note())

    def note():
        return frames.hook_state()["on_top"]

    callback = replacing({original: complete_one}, complete=True)
    compiled = frames.CompiledFunction(original, callback)
    for _ in range(3):
        compiled()
    assert states == [True, False, False]
    assert callback.asked == ["original"]


def test_an_incomplete_entry_runs_with_the_hook_on(replacing):
    def helper():
        return 1

    def original():
        return helper

    def breaks():
        return helper() + 1

    callback = replacing({original: breaks})
    compiled = frames.CompiledFunction(original, callback)
    assert [compiled() for _ in range(3)] == [2, 2, 2]
    assert callback.asked == ["original", "helper"]
    assert frames.stats(helper).skips == 2
    assert frames.get_callback() is None


def test_inside_another_activation(replacing):
    def helper():
        return 1

    def original():
        return helper

    def new():
        return helper() + 1

    inner, outer = replacing({original: new}), replacing({})
    compiled = frames.CompiledFunction(original, inner)
    with frames.activated(outer):
        assert compiled() == 2
        assert frames.get_callback() is outer
        helper()
    assert inner.asked == ["original", "helper"]
    assert "helper" in outer.asked


def test_a_compiled_function_called_by_a_complete_entry_still_compiles(replacing):
    def inner(x):
        return x

    def new_inner(x):
        return -x

    inner_callback = replacing({inner: new_inner}, complete=True)
    compiled_inner = frames.CompiledFunction(inner, inner_callback)

    def outer(x):
        return compiled_inner

    def new_outer(x):
        return compiled_inner(x)

    compiled_outer = frames.CompiledFunction(outer, replacing({outer: new_outer}, complete=True))
    assert compiled_outer(4) == compiled_outer(4) == -4
    assert inner_callback.asked == ["inner"]


def test_called_by_a_callback_it_runs_eagerly(replacing):
    compiled = frames.CompiledFunction(few, replacing({few: compiled_few}))
    results = []

    def callback(frame):
        results.append(compiled(1))
        return frames.SKIP("all")

    with frames.activated(callback):
        nothing()
    assert results[0][0] == "eager"
    assert compiled(1)[0] == "compiled"


def test_exceptions_and_their_tracebacks(replacing):
    def original(x):
        return x

    def new(x):
        return 1 // x

    compiled = frames.CompiledFunction(original, replacing({original: new}, complete=True))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            compiled(0)
        assert [entry.name for entry in caught.traceback][-1] == "new"
        assert caught.value.__context__ is None
    assert frames.get_callback() is None


def test_a_failing_checker_is_reported_and_the_call_is_eager(replacing):
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(type(error)))
    compiled = frames.CompiledFunction(few, replacing({few: compiled_few}, lambda args, function: 1 // 0))
    assert compiled(1)[0] == compiled(1)[0] == "eager"
    assert set(seen) == {ZeroDivisionError}


def test_defaults_changed_after_the_compilation_count(replacing):
    def original(x, y=1, *, z=2):
        return None

    def new(x, y=1, *, z=2):
        return x, y, z

    compiled = frames.CompiledFunction(original, replacing({original: new}, complete=True))
    assert compiled(0) == compiled(0) == (0, 1, 2)
    original.__defaults__ = (10,)
    original.__kwdefaults__ = {"z": 20}
    assert compiled(0) == (0, 10, 20)
    original.__kwdefaults__ = None
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'z'"):
        compiled(0)


def test_closures_are_the_wrapped_functions_own(replacing):
    def make(value):
        def original(x):
            return value

        def new(x):
            nonlocal value
            value += 1
            return value, x

        return original, new

    (first, new), (second, _) = make(10), make(20)
    callback = replacing({first: new}, complete=True)
    one, two = frames.CompiledFunction(first, callback), frames.CompiledFunction(second, callback)
    assert [one("a"), two("b"), one("c"), two("d")] == [(11, "a"), (21, "b"), (12, "c"), (22, "d")]


def test_it_looks_like_the_function():
    compiled = frames.CompiledFunction(echo, lambda frame: frames.SKIP("all"))
    assert compiled.__wrapped__ is echo
    assert compiled.__name__ == "echo"
    assert compiled.__qualname__ == "echo"
    assert compiled.__module__ == echo.__module__
    assert compiled.__doc__ == "The documentation."
    assert compiled.__defaults__ == (3,)
    assert inspect.signature(compiled) == inspect.signature(echo)
    assert inspect.unwrap(compiled) is echo
    assert callable(compiled)
    assert "echo" in repr(compiled)
    assert not inspect.iscoroutinefunction(compiled)
    echo.marker = 7
    assert compiled.marker == 7
    compiled.marker = 8
    compiled.__doc__ = "Another."
    compiled.__name__ = "other"
    assert (compiled.marker, echo.marker, compiled.__doc__, compiled.__name__) == (8, 7, "Another.", "other")
    with pytest.raises(AttributeError, match="nowhere"):
        compiled.nowhere
    again = functools.wraps(compiled)(lambda: None)
    assert again.__doc__ == "Another."
    del echo.marker


def test_as_method_classmethod_staticmethod_and_property(replacing):
    def size(self):
        return None

    def new_size(self):
        return "new", self

    callback = replacing({size: new_size}, complete=True)
    compiled = frames.CompiledFunction(size, callback)

    class Thing:
        method = compiled
        of_class = classmethod(compiled)
        static = staticmethod(compiled)
        prop = property(compiled)

    thing = Thing()
    for _ in range(2):
        assert thing.method() == ("new", thing)
        assert Thing.method(5) == ("new", 5)
        assert thing.of_class() == ("new", Thing)
        assert thing.static(6) == ("new", 6)
        assert thing.prop == ("new", thing)
    assert Thing.method is compiled
    assert thing.method.__self__ is thing
    assert thing.method.__func__ is compiled
    assert functools.partial(compiled, 4)() == ("new", 4)


decorated = frames.CompiledFunction(few, lambda frame: frames.SKIP("all"))
decorated.__qualname__ = decorated.__name__ = "decorated"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_like_the_function(protocol):
    assert sys.modules[__name__].decorated is decorated
    assert pickle.loads(pickle.dumps(decorated, protocol)) is decorated
    undecorated = frames.CompiledFunction(few, lambda frame: frames.SKIP("all"))
    assert pickle.loads(pickle.dumps(undecorated, protocol)) is few
    assert pickle.loads(pickle.dumps(frames.without_hook(few), protocol)) is few


def test_annotations_with_type_arguments():
    assert frames.CompiledFunction[[int], str].__origin__ is frames.CompiledFunction


def test_copies_are_itself():
    compiled = frames.CompiledFunction(few, lambda frame: frames.SKIP("all"))
    assert copy.copy(compiled) is copy.deepcopy(compiled) is compiled


def test_it_can_be_weakly_referenced_and_its_entry_functions_go_at_a_reset(replacing):
    compiled = frames.CompiledFunction(few, replacing({few: compiled_few}, complete=True))
    compiled(1), compiled(1)
    entry = weakref.ref(frames.entries(few)[0])
    frames.reset()
    gc.collect()
    assert entry() is None
    dead = weakref.ref(compiled)
    del compiled
    assert dead() is None


def generator():
    yield


async def coroutine():
    return


@pytest.mark.parametrize(
    ("function", "callback", "message"),
    [
        (len, echo, "expected a Python function, not builtin_function_or_method"),
        (3, echo, "expected a Python function, not int"),
        (echo, 3, "the callback must be callable, not int"),
        (generator, echo, "generator is a generator or coroutine function"),
        (coroutine, echo, "coroutine is a generator or coroutine function"),
    ],
)
def test_what_cannot_be_compiled_is_refused(function, callback, message):
    with pytest.raises(TypeError, match=message):
        frames.CompiledFunction(function, callback)


def test_without_hook_hides_what_it_calls(replacing):
    def inner(x):
        return x

    wrapped = frames.without_hook(lambda x: inner(x) + 1)
    callback = replacing({})
    with frames.activated(callback):
        assert wrapped(1) == 2
        assert wrapped(x=2) == 3
        with pytest.raises(TypeError):
            wrapped()
        assert "inner" not in callback.asked
        inner(1)
    assert "inner" in callback.asked
    with pytest.raises(TypeError, match="expected a callable, not int"):
        frames.without_hook(3)


def test_without_hook_is_a_descriptor_and_looks_like_what_it_wraps():
    class Thing:
        @frames.without_hook
        def method(self):
            """Words."""
            return self

    thing = Thing()
    assert thing.method() is thing
    assert Thing.method.__doc__ == "Words."
    assert Thing.method.__name__ == "method"
    assert frames.without_hook(len)([1, 2]) == 2
