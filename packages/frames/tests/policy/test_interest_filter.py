"""`set_interest_filter`: the calls that are offered to a callback."""

import functools
import gc
import sys
import types
import weakref

import pytest
from interested import (
    Asked,
    Derived,
    Holder,
    Slotted,
    Thing,
    asked_about,
    asked_in,
    library,
    make,
    nothing_given,
    plain,
    sub,
    variadic,
)

import framesmith_frames as frames

#: Deeper than names are followed.
SHELF = Holder(Holder(Thing()))


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
def test_filtered(name):
    asked = Asked()
    assert asked_in(asked, plain, UNINTERESTING[name], times=40) == []
    assert frames.stats(plain).filtered == 40
    assert asked_about(variadic, *UNINTERESTING[name], times=40) == []


@pytest.mark.parametrize("name", list(INTERESTING))
def test_offered(name):
    assert asked_about(plain, INTERESTING[name]) == ["plain"]
    assert asked_about(plain, 1, b=INTERESTING[name]) == ["plain"]
    assert asked_about(variadic, 1, INTERESTING[name]) == ["variadic"]
    assert asked_about(variadic, word=INTERESTING[name]) == ["variadic"]


@pytest.mark.parametrize("already", [1, 3, 5, 64, 100, 1000])
def test_a_thing_in_the_arguments_after_calls_without(already):
    asked = Asked()
    with frames.activated(asked):
        nothing_given()
        for _ in range(already):
            plain(1, [2])
        assert asked.names == ["nothing_given"]
        plain(Thing())
    assert asked.names == ["nothing_given", "plain"]


def test_an_object_that_holds_a_thing_is_found_at_last():
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


def test_code_that_names_a_lazy_import():
    sources = {
        "lazy import library as other\ndef whole(): return other": True,
        "lazy from library import make as other\ndef part(): return other": True,
        "lazy import library.sub as other\ndef inner(): return other": True,
        "lazy from library.sub import deep as other\ndef deeper(): return other": True,
        "lazy import libraries as other\ndef like_named(): return other": False,
    }
    modules = {"library": library, "library.sub": sub, "libraries": types.ModuleType("libraries")}
    sub.deep = 1
    try:
        compile(next(iter(sources)), "", "exec")
    except SyntaxError:
        pytest.skip("lazy imports came with 3.15")
    for source, interesting in sources.items():
        exec(source, names := {"__name__": "program"})
        function = list(names.values())[-1]
        assert repr(dict.get(names, "other")).startswith("<lazy_import"), source
        sys.modules |= modules  # the call imports
        try:
            assert bool(asked_about(function)) == interesting, source
        finally:
            for name in modules:
                del sys.modules[name]
        assert function() is dict.get(names, "other")
    del sub.deep


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


def test_always_offer():
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


def test_other_callbacks_are_offered_all_calls():
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


def test_searched_objects_are_neither_run_nor_kept_alive():
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


DEPRECATED = {"ask_only_about": "set_interest_filter", "always_ask": "always_offer"}  # old-name


@pytest.mark.parametrize(("name", "present"), DEPRECATED.items())
def test_deprecated_names_still_work(name: str, present: str) -> None:
    with pytest.warns(FutureWarning, match=f"{name} is deprecated: use '{present}'"):
        assert getattr(frames, name) is getattr(frames, present)
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        frames.unknown
