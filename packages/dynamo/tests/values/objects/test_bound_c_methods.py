"""Bound methods in C that arrive as objects: the method is the one that was bound, not the one of that name."""

import torch
from driver import compiled

LOG = []


class Trouble(ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        LOG.append(code)


class Counted(dict):
    def __init__(self, *args):
        LOG.append("init")
        super().__init__(*args)

    def __len__(self):
        return 100

    def __eq__(self, other):
        return "mine"

    __hash__ = None


def test_super_method_of_an_exception_across_a_break():
    def fn(x):
        return Trouble(x + 1).args, len(LOG)

    LOG.clear()
    expected = [fn(torch.ones(2)) for _ in range(3)]
    LOG.clear()
    subject = compiled(fn)
    assert [subject(torch.ones(2)) for _ in range(3)] == expected
    assert any("__format__" in event.detail for event in subject.of_kind("break"))


def test_bound_slots_of_a_base_class():
    def fn(x, method):
        return x + method()

    holder = Counted({1: 2})
    methods = [holder.__len__, super(Counted, holder).__len__, dict.__len__.__get__(holder), Counted().__len__]
    subject = compiled(fn)
    for method in (*methods, *reversed(methods)):
        assert torch.equal(subject(torch.ones(2), method), fn(torch.ones(2), method))


def test_bound_comparison_of_a_base_class():
    def fn(x, method, other):
        return x + 1, method(other)

    holder = Counted({1: 2})
    subject = compiled(fn)
    for method in (super(Counted, holder).__eq__, {1: 2}.__eq__, {}.__eq__):
        for other in ({1: 2}, {1: 3}, 5):
            assert subject(torch.ones(2), method, other)[1] is method(other)


def test_methods_of_containers_that_bases_have_as_well():
    from collections import OrderedDict

    def fn(x, pop, key):
        return x * pop(key)

    def pops():
        return OrderedDict(a=2, b=3).pop, dict.pop.__get__(OrderedDict(a=2, b=3)), {"a": 2}.pop

    subject = compiled(fn)
    for mine, theirs in zip(pops(), pops(), strict=True):
        assert torch.equal(subject(torch.ones(2), mine, "a"), fn(torch.ones(2), theirs, "a"))


def test_methods_of_lists_are_still_traced():
    def fn(x, append):
        append(2)
        return x + len(append.__self__)

    subject = compiled(fn, fullgraph=True)
    for count in (1, 2, 1):
        assert torch.equal(subject(torch.ones(2), ([0] * count).append), torch.ones(2) + count + 1)
