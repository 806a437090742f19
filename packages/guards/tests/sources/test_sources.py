"""Sources: interned, printed, and evaluated the same by the reference and by the rendered text."""

import copy
import functools
import pickle
import sys
import threading
import weakref
from collections import deque
from types import MappingProxyType

import pytest
import torch

from framesmith_guards import (
    AttrSource,
    BuiltinSource,
    CachedResultSource,
    CellContentsSource,
    ClosureSource,
    DictKeySource,
    DictValueSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    Guard,
    GuardError,
    HandledExceptionSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    MembersSource,
    ModuleSource,
    ProxiedSource,
    StoredItemSource,
    SubclassesSource,
    TensorPropertySource,
    TypeSource,
    WeakRefSource,
    buffer_source,
    compile_guards,
    parameter_source,
    submodule_source,
)
from framesmith_guards.sources import GuardSource, origin_of
from framesmith_guards.sources.caches import CallKey

GLOBAL = object()


class Holder:
    pass


def make_function():
    captured = torch.nn.Sequential(torch.nn.BatchNorm1d(2))

    def function(x, d):
        return captured, GLOBAL

    return function, captured


def rows():
    function, captured = make_function()
    x = torch.randn(6, 2)[1:, :1]
    holder = Holder()
    holder.tensor, holder.ref = x, weakref.ref(holder)
    key = Holder()
    d = {"a": holder, key: 2, 1: [3, (4, 5)]}
    holder.proxy = MappingProxyType(d)
    L = LocalSource
    item = ItemSource(L("d"), "a")
    return (
        function,
        (x, d),
        [
            (L("x"), "L['x']", x),
            (GlobalSource("GLOBAL"), "G['GLOBAL']", GLOBAL),
            (ClosureSource("captured"), "C['captured']", captured),
            (BuiltinSource("len"), "B['len']", len),
            (FunctionSource(), "function", function),
            (GlobalsDictSource(), "G", function.__globals__),
            (HandledExceptionSource(), "sys.exception()", None),
            (ModuleSource("sys"), "sys.modules['sys']", sys),
            (AttrSource(item, "tensor"), "L['d']['a'].tensor", x),
            (ItemSource(ItemSource(ItemSource(L("d"), 1), 1), 0), "L['d'][1][1][0]", 4),
            (TypeSource(item), "type(L['d']['a'])", Holder),
            (SubclassesSource(TypeSource(item)), "type(L['d']['a']).__subclasses__()", []),
            (InstanceDictSource(item), "L['d']['a'].__dict__", holder.__dict__),
            (DictKeySource(L("d"), 1), "list(L['d'])[1]", key),
            (DictValueSource(L("d"), 1), "list(L['d'].values())[1]", 2),
            (StoredItemSource(L("d"), 1), "stored_item(L['d'], 1)", d[1]),
            (ProxiedSource(AttrSource(item, "proxy")), "mapping_behind(L['d']['a'].proxy)", d),
            (WeakRefSource(AttrSource(item, "ref")), "L['d']['a'].ref()", holder),
            (TensorPropertySource(L("x"), "size", 0), "L['x'].size(0)", 5),
            (TensorPropertySource(L("x"), "stride", 0), "L['x'].stride(0)", 2),
            (TensorPropertySource(L("x"), "storage_offset"), "L['x'].storage_offset()", 2),
            (
                CellContentsSource(ItemSource(AttrSource(FunctionSource(), "__closure__"), 0)),
                "function.__closure__[0].cell_contents",
                captured,
            ),
            (
                submodule_source(ClosureSource("captured"), "0"),
                "C['captured'].__dict__['_modules']['0']",
                captured[0],
            ),
            (
                parameter_source(submodule_source(ClosureSource("captured"), "0"), "weight"),
                "C['captured'].__dict__['_modules']['0'].__dict__['_parameters']['weight']",
                captured[0].weight,
            ),
            (
                buffer_source(submodule_source(ClosureSource("captured"), "0"), "running_mean"),
                "C['captured'].__dict__['_modules']['0'].__dict__['_buffers']['running_mean']",
                captured[0].running_mean,
            ),
        ],
    )


def test_names_and_values_by_reference_and_by_text():
    function, args, table = rows()
    by_name = dict(zip(("x", "d"), args))
    for source, name, value in table:
        assert source.name == name
        found = source.evaluate(by_name, function)
        assert found is value or found == value
        program = compile_guards([], ("x", "d"), function.__code__.co_freevars, inputs=[source])
        [extracted] = program.extract(args, function)
        assert extracted is value or extracted == value


def test_stored_items_are_read_past_the_class():
    class Own(dict):
        def __getitem__(self, key):
            return "made"

        __missing__ = __getitem__

    class Numbers(list):
        def __getitem__(self, key):
            return "made"

    class Ring(deque):
        __getitem__ = Numbers.__getitem__

    holder, numbers = Own(a=1), Numbers([4, 5])
    assert StoredItemSource(LocalSource("x"), 1).evaluate({"x": Ring([4, 5])}, test_chains) == 5
    for value, key, expected in ((holder, "a", 1), (numbers, 1, 5), (numbers, -1, 5)):
        source = StoredItemSource(LocalSource("x"), key)
        program = compile_guards([Guard(source, "EQUALS_MATCH", expected)], ("x",))
        assert program((value,), test_chains) and not program((value[:0] if value is numbers else Own(),), test_chains)
    with pytest.raises(KeyError):
        StoredItemSource(LocalSource("x"), "b").evaluate({"x": holder}, test_chains)
    with pytest.raises(GuardError, match="key of StoredItemSource is a constant"):
        StoredItemSource(LocalSource("x"), object())


def test_members_are_read_past_the_class():
    class Own(set):
        def __iter__(self):
            return iter("made")

        __len__ = __contains__ = __eq__ = __iter__

    source = MembersSource(LocalSource("x"))
    program = compile_guards([Guard(source, "EQUALS_MATCH", frozenset({1, 2}))], ("x",))
    assert program((Own([2, 1]),), test_chains) and program((frozenset([1, 2]),), test_chains)
    assert not program((Own([1]),), test_chains)
    assert source.name == "members_of(L['x'])"
    with pytest.raises(TypeError, match="not a set: list"):
        source.evaluate({"x": [1]}, test_chains)


def test_proxies_alone_have_a_mapping_behind_them():
    with pytest.raises(TypeError, match="not a mapping proxy"):
        ProxiedSource(LocalSource("x")).evaluate({"x": {}}, test_chains)


def test_equal_sources_are_one_object():
    _, _, table = rows()
    for source, _, _ in table:
        assert type(source)(*source.fields()) is source
        assert pickle.loads(pickle.dumps(source)) is source
        assert copy.deepcopy(source) is source
        assert hash(source) == hash(copy.copy(source))
    assert LocalSource(local="x") is LocalSource("x")
    assert ItemSource(LocalSource("x"), 1) is not ItemSource(LocalSource("x"), True)
    assert ItemSource(LocalSource("x"), 0.0) is not ItemSource(LocalSource("x"), -0.0)
    assert LocalSource("x") is not GlobalSource("x")
    with pytest.raises(TypeError, match="no field 'name'"):
        LocalSource(name="x")


def test_interning_is_safe_between_threads():
    found = []

    def work():
        found.append([AttrSource(LocalSource("thread"), f"a{i}") for i in range(200)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b for other in found[1:] for a, b in zip(found[0], other))


def test_sources_are_forgotten_when_unused():
    reference = weakref.ref(AttrSource(LocalSource("never"), "again"))
    assert reference() is None


def test_sources_are_frozen():
    with pytest.raises(AttributeError):
        LocalSource("x").local = "y"


def test_chains():
    source = ItemSource(AttrSource(LocalSource("x"), "a"), 0)
    assert [step.name for step in source.chain()] == ["L['x'].a[0]", "L['x'].a", "L['x']"]
    assert source.root is LocalSource("x") and source.depth == 2
    assert origin_of(source) is GuardSource.LOCAL
    assert origin_of(GlobalSource("g")) is GuardSource.GLOBAL


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AttrSource("x", "a"), "starts from a Source"),
        (lambda: ItemSource(LocalSource("x"), object()), "use DictKeySource"),
        (lambda: TensorPropertySource(LocalSource("x"), "sise", 0), "did you mean 'size'"),
        (lambda: TensorPropertySource(LocalSource("x"), "size"), "needs a dimension"),
        (lambda: TensorPropertySource(LocalSource("x"), "storage_offset", 1), "takes none"),
        (lambda: compile_guards([Guard(LocalSource("xs"), "NONE_MATCH")], ["x"]), "no argument 'xs': did you mean 'x'"),
        (lambda: compile_guards([Guard(ClosureSource("c"), "NONE_MATCH")], ["x"], ["d"]), "no free variable 'c'"),
        (lambda: Guard("x", "NONE_MATCH"), "about a Source"),
    ],
)
def test_bad_sources_are_refused(build, message):
    with pytest.raises(GuardError, match=message):
        build()


@pytest.mark.parametrize("native", [None, False])
def test_the_exception_that_a_caller_handles(native):
    def function():
        return None

    check = compile_guards([Guard(HandledExceptionSource(), "NONE_MATCH")], (), native=native)
    assert check((), function)
    try:
        raise ValueError("handled")
    except ValueError:
        assert not check((), function)
        assert "sys.exception()" in check.explain((), function)
    assert check((), function)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("typed", [True, False])
def test_what_caches_hold_is_read_without_a_trace(size, typed):
    @functools.lru_cache(size, typed)
    def cached(*args, **kwargs):
        return [*args, kwargs]

    calls = [((), {}), ((1,), {}), (("a",), {"by": 2}), ((1.5, (2, 3)), {})]
    held = [cached(*args, **kwargs) for args, kwargs in calls]
    counted = cached.cache_info()
    for (args, kwargs), expected in zip(calls, held, strict=True):
        source = CachedResultSource(LocalSource("f"), CallKey(args, tuple(kwargs.items())))
        for native in (None, False):
            program = compile_guards([Guard(source, "LENGTH", len(expected))], ("f",), inputs=[source], native=native)
            assert program.extract((cached,), cached.__wrapped__)[0] is expected
    missing = CachedResultSource(LocalSource("f"), CallKey((7,)))
    assert not compile_guards([Guard(missing, "NOT_NONE")], ("f",))((cached,), cached.__wrapped__)
    assert cached.cache_info() == counted
    assert [cached(*args, **kwargs) for args, kwargs in calls] == held and cached.cache_info().hits == counted.hits + 4


def test_a_path_moves_to_another_start_and_the_last_of_several_counts():
    first, second, inner = LocalSource("a"), LocalSource("b"), AttrSource(LocalSource("a"), "x")
    path = ItemSource(AttrSource(inner, "y"), 0)
    starts = {first: second}
    assert path.moved(starts) is ItemSource(AttrSource(AttrSource(second, "x"), "y"), 0)
    assert starts[inner] is AttrSource(second, "x")
    assert path.moved({first: second, inner: second}) is ItemSource(AttrSource(second, "y"), 0)
    assert path.moved({second: first}) is None
    guard = Guard(path, "EQUALS_MATCH", 1).at(second)
    assert guard == Guard(second, "EQUALS_MATCH", 1)
