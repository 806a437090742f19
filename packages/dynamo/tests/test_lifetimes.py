"""What compiling makes dies with the function or with the converter: an entry hangs on a code object, unseen by gc."""

import gc
import linecache
import types
import weakref

import torch
from driver import Compiled, compiled

X = torch.arange(4.0)


def template(x):
    return (x + 1) * TABLE["scale"]  # noqa: F821


def fresh():
    code = template.__code__.replace(co_firstlineno=template.__code__.co_firstlineno + 1)
    return types.FunctionType(code, {"TABLE": {"scale": torch.full((4,), 2.0)}}, "fresh")


def collect():
    """Twice: what hung on a code object only becomes garbage when the first round frees that."""
    gc.collect()
    gc.collect()


def test_a_dropped_function_takes_all_along():
    subject = compiled(fresh())
    for _ in range(2):
        subject(X)
    [entry] = subject.of_kind("entry")
    [module] = subject.graphs
    filename = module.forward.__code__.co_filename
    assert filename in linecache.cache and filename in torch.fx.graph_module._loader.eval_cache
    dead = [weakref.ref(thing) for thing in (subject.fn.__code__, entry.check, entry.residual, module, module.graph)]
    subject.events.clear()
    converter = subject.converter  # lives on
    del subject, entry, module
    collect()
    assert [reference() for reference in dead] == [None] * len(dead)
    assert filename not in linecache.cache and filename not in torch.fx.graph_module._loader.eval_cache
    assert converter is not None


def test_a_dropped_converter_dies_while_the_function_lives():
    function = fresh()
    subject = Compiled(function)
    for _ in range(2):
        subject(X)
    dead = [weakref.ref(subject.converter), weakref.ref(subject.graphs[0])]
    del subject
    collect()
    assert [reference() for reference in dead] == [None, None]
    assert torch.equal(function(X), (X + 1) * 2)
