"""Programs with side effects on lists, dicts, objects, cells, globals, tensors, modules: each once, in order."""

from __future__ import annotations

import copy
import operator
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from driver import active, check, compiled, same

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter

X = torch.arange(6.0).reshape(2, 3)
COUNT = 0
LOG: list[Any] = []


class Box:
    def __init__(self, value=0):
        self.value = value
        self.history = []

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, value):
        self.value = value / 2

    def put(self, value):
        self.history.append(self.value)
        self.value = value
        return self

    def __enter__(self):
        self.put("entered")
        return self

    def __exit__(self, *exc):
        self.put("left")
        return False


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


@dataclass
class Record:
    name: str
    items: list = field(default_factory=list)


def list_methods(x, items):
    items.append(x + 1)
    items.insert(0, "first")
    items.extend([1, 2])
    items.remove(1)
    popped = items.pop(1)
    items[0] = items[-1]
    items.reverse()
    return popped, len(items), items.index(2)


def list_aliases(x, items):
    other = items
    other.append(x)
    items += [1]
    return items is other, other


def dict_methods(x, d):
    d["new"] = x * 2
    d.setdefault("a", []).append(3)
    d.update(b=4)
    gone = d.pop("a")
    del d["b"]
    return gone, list(d), d.get("zz", 9), "new" in d


def default_dict(x, d):
    d["k"].append(x)
    d["k"].append(2)
    return len(d), d


def sets(x, s):
    s.add(5)
    s.discard(1)
    s |= {7, 8}
    return x + len(s), s & {5, 7}


def deques(x, d):
    d.append(x.sum())
    d.appendleft(0)
    d.rotate(1)
    return d


def attributes(x, box):
    box.value = x + 1
    box.extra = [x]
    box.extra.append(2)
    box.double = 8
    del box.history
    return box.value, box.double, hasattr(box, "history")


def methods(x, box):
    return box.put(x).put(x * 2).history, box.double


def nested_objects(x, boxes):
    boxes[0].put(boxes[1])
    boxes[1].put(x)
    boxes.append(Box(x))
    return boxes[-1].value + boxes[0].value.value


def new_objects(x):
    a = Box(x)
    b = Box(a)
    a.put(b)
    return a


def slotted(x, s):
    s.a = x
    s.b = [s.a]
    t = Slotted()
    t.b = s
    return t


def data_class(x, r):
    r.items.append(x)
    made = Record("new", [r])
    made.items.append(Record(name="inner"))
    return made, made == Record("new", made.items), made != r


def setattr_by_name(x, box):
    for i, name in enumerate(["p", "q"]):
        setattr(box, name, x * i)
    delattr(box, "p")
    return getattr(box, "q") + getattr(box, "p", 1), sorted(vars(box))


def context_manager(x, box):
    with box as inside:
        y = x * 2
        inside.put(3)
    return y, box.history


def in_place(x, y):
    x.add_(1)
    y[0] = x[1]
    x *= 2
    view = y.view(-1)
    view[2:4].zero_()
    return x, y.sum(), view


def out_argument(x, y):
    torch.add(x, 1, out=y)
    return y * 2


def returns_inputs(x, items):
    return x, items, items[0], [x, x]


def swaps(x, items):
    items[0], items[1] = items[1], items[0]
    return items[0], x + 1


def clears(x, items, d):
    items.clear()
    d.clear()
    items.append(d)
    d["self"] = items
    return x + 1, d


def global_counter(x):
    global COUNT
    COUNT += 1
    COUNT = COUNT * 2
    return x * COUNT


def global_list(x):
    LOG.append(len(LOG))
    return x + len(LOG)


def closure_state():
    total = [0]
    count = 0

    def f(x):
        nonlocal count
        count += 1
        total[0] += count
        return x * count, total[0]

    return f


PROGRAMS: list[tuple[Any, tuple[Any, ...]]] = [
    (list_methods, (X, [1, 2, 3])),
    (list_aliases, (X, [0])),
    (dict_methods, (X, {"a": [1], "z": X})),
    (default_dict, (X, defaultdict(list, j=[1]))),
    (sets, (X, {1, 2})),
    (deques, (X, deque([1, 2], maxlen=3))),
    (attributes, (X, Box(2))),
    (methods, (X, Box(1))),
    (nested_objects, (X, [Box(1), Box(2)])),
    (new_objects, (X,)),
    (slotted, (X, Slotted())),
    (data_class, (X, Record("r"))),
    (setattr_by_name, (X, Box())),
    (context_manager, (X, Box())),
    (in_place, (X, X + 10)),
    (out_argument, (X, X * 0)),
    (returns_inputs, (X, [X, 1])),
    (swaps, (X, [1, X])),
    (clears, (X, [1], {"a": 1})),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_effects_equal_eager(program: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = program
    found = check(fn, *args, fullgraph=True)
    assert len(found.of_kind("entry")) == 1, [str(event) for event in found.events]


def test_globals_change_once_per_call() -> None:
    global COUNT
    frames.reset()
    subject = compiled(global_counter)
    COUNT = 1
    results = [subject(X), subject(X), subject(X)]
    assert COUNT == 22
    assert same(results, [X * 4, X * 10, X * 22])


def test_global_list_grows_once_per_call() -> None:
    LOG.clear()
    frames.reset()
    subject = compiled(global_list)
    assert same([subject(X), subject(X)], [X + 1, X + 2])
    assert LOG == [0, 1]


def test_closure_cells_change_once_per_call() -> None:
    frames.reset()
    plain, subject = closure_state(), compiled(closure_state())
    for _ in range(4):
        assert same(subject(X), plain(X))


def test_identity_survives() -> None:
    def f(x, items):
        y = x + 1
        items.append(y)
        made = [items, y]
        return made, made, y

    frames.reset()
    items: list[Any] = []
    first, second, y = compiled(f)(X, items)
    assert first is second
    assert first[0] is items
    assert first[1] is y is items[0]


def test_aliased_arguments_are_not_confused() -> None:
    def f(a, b, x):
        a.append(1)
        return len(b) + x

    frames.reset()
    subject = compiled(f)
    one: list[int] = []
    assert same(subject([], [], X), X)
    assert same(subject(one, one, X), X + 1)
    assert same(subject([], [5], X), X + 1)


def test_aliased_tensors_are_not_confused() -> None:
    def f(a, b):
        a.add_(1)
        return a + b

    frames.reset()
    subject = compiled(f)
    p, q = X.clone(), X.clone()
    assert same(subject(p, q), X + 1 + X)
    p = X.clone()
    assert same(subject(p, p), 2 * (X + 1))


def test_batch_norm_statistics_are_updated_once() -> None:
    torch.manual_seed(0)
    module = torch.nn.BatchNorm1d(3)
    twin = copy.deepcopy(module)
    frames.reset()
    subject = compiled(module.forward, fullgraph=True)
    for i in range(3):
        x = torch.randn(4, 3) + i
        assert same(subject(x), twin(x))
    assert same(dict(module.named_buffers()), dict(twin.named_buffers()))


def functional_compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
    """A compiler that reads every input first and writes mutated ones back at the end."""

    def run(*tensors):
        copies = [tensor.clone() for tensor in tensors]
        outputs = module(*copies)
        for tensor, changed in zip(tensors, copies):
            tensor.copy_(changed)
        return outputs

    return run


def test_inputs_that_share_memory_at_a_later_call() -> None:
    def f(a, b):
        a.add_(1)
        return a + b

    def separate():
        return torch.arange(4.0), torch.arange(4.0)

    def same_memory():
        x = torch.arange(4.0)
        return x, x.view(4)

    def overlapping():
        x = torch.arange(8.0)
        return x[0:4], x[2:6]

    def empty():
        return torch.zeros(0), torch.zeros(0)

    frames.reset()
    converter = FrameConverter(functional_compiler, strict=True)
    for make in (separate, same_memory, overlapping, empty, separate):
        plain, subject = make(), make()
        expected = f(*plain)
        with active(converter):
            found = f(*subject)
        assert same((found, subject), (expected, plain)), make.__name__


def test_operations_on_lists_in_place_give_the_list_back() -> None:
    def program(tensors: Any, others: Any) -> Any:
        first = torch._foreach_add_(tensors, 1)
        second = torch._foreach_mul_(others, [2.0, 3.0])
        first.append(5)
        return first is tensors, second is others, type(second), torch._foreach_neg(others)

    for kind in (list, tuple):
        check(program, [torch.ones(2), torch.ones(3)], kind([torch.ones(2), torch.ones(3)]), calls=1)


@pytest.mark.parametrize("first", [(), (23,), (7, 15, 3)])
def test_a_set_that_changes_keeps_the_order_of_its_own_history(first: tuple[int, ...]) -> None:
    """7, 15 and 23 collide in a small set: the first one inserted comes first."""

    def step(x: Any, seen: set[int]) -> Any:
        seen.discard(3)
        seen.add(7)
        seen |= {15}
        seen.update([31, 23])
        return x + len(seen)

    orders = []
    for run in (step, compiled(step)):
        seen = set(first)
        run(torch.ones(2), seen)
        orders.append(list(seen))
    assert orders[0] == orders[1]


EXCHANGES: dict[str, Callable[[set[Any], Any], object]] = {
    "discard and add": lambda c, new: (c.discard(new), c.add(new)),
    "discard and update": lambda c, new: (c.discard(new), c.update([new])),
    "remove and merge": lambda c, new: (c.remove(new), operator.ior(c, {new})),
    "pop and add": lambda c, new: (c.difference_update([2]), c.pop(), c.add(new)),
    "subtract and merge": lambda c, new: (operator.isub(c, {new}), operator.ior(c, {new})),
    "toggle twice": lambda c, new: (operator.ixor(c, {new}), operator.ixor(c, {new})),
    "intersect": lambda c, new: c.intersection_update([new, 2]),
    "clear and add": lambda c, new: (c.clear(), c.add(new)),
    "add": lambda c, new: c.add(new),
    "merge and discard another": lambda c, new: (c.update([new]), c.discard(2)),
}


@pytest.mark.parametrize("how", EXCHANGES)
@pytest.mark.parametrize(("old", "new"), [(1, True), (True, 1), (0, False), (0.0, -0.0), (1, 1.0), (1, 1)])
def test_the_member_of_a_set_is_the_one_that_was_added_last(how: str, old: Any, new: Any) -> None:
    """A set retains the first of equal members, until it is removed."""

    def step(x: Any, kept: set[Any], new: Any) -> Any:
        EXCHANGES[how](kept, new)
        return x + len(kept), str(kept)

    found = []
    for run in (step, compiled(step)):
        kept = {old, 2}
        try:
            found.append((run(torch.ones(2), kept, new)[1:], sorted(map(repr, kept))))
        except KeyError as error:
            found.append((repr(error), sorted(map(repr, kept))))
    assert found[0] == found[1]
