"""Operations on a container of each type, one at a time; `HOLDERS` says how each is made.

An operation takes the container and a tensor, changes the one or looks at it, and returns what it has seen.
"""

import array
import bisect
import collections
import heapq
import operator
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque

from integration_tests.programs.side_effects.operations import Holder, attempt


class Log(list):
    def __init__(self, *args):
        super().__init__(*args)
        self.calls = 0

    def append(self, item):
        self.calls += 1
        super().append(item)


class Tagged(list):
    __slots__ = ("tag",)


class Table(dict):
    kinds = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Table.kinds.append(cls.__name__)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.missed = []

    def __missing__(self, key):
        self.missed.append(key)
        self[key] = len(self.missed)
        return self[key]

    def __setitem__(self, key, value):
        self.__dict__.setdefault("stores", []).append(key)
        super().__setitem__(key, value)


class SubTable(Table):
    pass


class Recent(OrderedDict):
    def __init__(self, size=2):
        super().__init__()
        self.size = size

    def put(self, key, value):
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False) if len(self) > self.size else None


class Ring(deque):
    def __init__(self, items=(), maxlen=3):
        super().__init__(items, maxlen)
        self.dropped = 0

    def append(self, item):
        self.dropped += self.maxlen is not None and len(self) == self.maxlen
        super().append(item)


class Bag(set):
    def __init__(self, *args):
        super().__init__(*args)
        self.added = []

    def add(self, item):
        self.added.append(item)
        super().add(item)


class Fixed(frozenset):
    tag = "fixed"

    def __new__(cls, items=(), note=None):
        made = super().__new__(cls, items)
        made.note = note
        return made


class Groups(defaultdict):
    def __init__(self, *args):
        super().__init__(list, *args)
        self.made = 0

    def __missing__(self, key):
        self.made += 1
        return super().__missing__(key)


class Tally(Counter):
    def hit(self, key):
        self[key] += 1
        self.hits = getattr(self, "hits", 0) + 1


class Texts(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(str(key), value)


class Items(UserList):
    def append(self, item):
        super().append(item)
        self.last = item


class Bytes(bytearray):
    count = 0


def contain_itself(c):
    c.append(c)
    return len(c), c[-1] is c


def hold_itself(c):
    c["self"] = c
    return c["self"] is c


def views(c):
    keys, values, items = c.keys(), c.values(), c.items()
    c["zz"] = 9
    return list(keys), list(values), list(items), len(keys), "zz" in keys


def grow(c, step):
    """Change a container while it is iterated over."""
    try:
        for item in c:
            if len(c) > 12:
                return "long"
            step(c, item)
    except RuntimeError as error:
        return type(error).__name__, str(error)


def tag(c, value):
    c.tag = value
    c.append(value)


def without_factory(c):
    c.default_factory = None
    return attempt(operator.getitem, c, "nothing")


LIST = Holder(
    lambda: [3, 1, 2],
    {
        "append": lambda c, x: c.append(x),
        "extend": lambda c, x: c.extend(item + 1 for item in [1, 2]),
        "insert": lambda c, x: c.insert(-1, 7),
        "pop": lambda c, x: c.pop(0),
        "sort": lambda c, x: c.sort(key=lambda value: -value),
        "sorted": lambda c, x: sorted(c, reverse=True),
        "slice": lambda c, x: operator.setitem(c, slice(0, 2), [9, 8, 7]),
        "stride": lambda c, x: operator.setitem(c, slice(None, None, 2), [9] * len(c[::2])),
        "delete": lambda c, x: operator.delitem(c, slice(0, 1)),
        "repeat": lambda c, x: operator.imul(c, 2),
        "join": lambda c, x: operator.iadd(c, (4, 5)),
        "clear": lambda c, x: c.clear(),
        "remove": lambda c, x: attempt(c.remove, 1),
        "itself": lambda c, x: contain_itself(c),
        "reverse": lambda c, x: c.reverse(),
        "heap": lambda c, x: (heapq.heapify(c), heapq.heapreplace(c, 5), heapq.heappushpop(c, 0), heapq.nlargest(2, c)),
        "bisect": lambda c, x: (c.sort(), bisect.insort(c, 2), bisect.bisect_left(c, 2)),
        "grow": lambda c, x: grow(c, lambda c, item: c.append(item)),
    },
)
DICT = Holder(
    lambda: {"a": 1, "b": 2},
    {
        "store": lambda c, x: operator.setitem(c, "c", x),
        "delete": lambda c, x: attempt(operator.delitem, c, "a"),
        "update": lambda c, x: c.update(a=5, z=[x]),
        "setdefault": lambda c, x: c.setdefault("q", []).append(1),
        "pop": lambda c, x: c.pop("a", None),
        "popitem": lambda c, x: attempt(c.popitem),
        "clear": lambda c, x: c.clear(),
        "merge": lambda c, x: operator.ior(c, [("b", 3), ("n", 4)]),
        "views": lambda c, x: views(c),
        "grow": lambda c, x: grow(c, lambda c, key: operator.setitem(c, key + "x", 1)),
        "itself": lambda c, x: hold_itself(c),
        "missing": lambda c, x: attempt(operator.getitem, c, "nothing"),
        "move": lambda c, x: operator.setitem(c, "a", c.pop("a", 0)),
        "union": lambda c, x: c | {"o": 1},
    },
)
SET = Holder(
    lambda: {1, 2, 3},
    {
        "add": lambda c, x: c.add(10),
        "discard": lambda c, x: c.discard(2),
        "remove": lambda c, x: attempt(c.remove, 2),
        "update": lambda c, x: c.update([4, 5]),
        "exchange": lambda c, x: (c.discard(True), c.update([True])),
        "intersect": lambda c, x: operator.iand(c, {1, 8, 10}),
        "subtract": lambda c, x: operator.isub(c, {1}),
        "toggle": lambda c, x: operator.ixor(c, {1, 5}),
        "clear": lambda c, x: c.clear(),
        "sorted": lambda c, x: sorted(c),
        "frozen": lambda c, x: c.add(frozenset({1, 2})),
        "equal_ones": lambda c, x: (set([1, True, 1.0]), set([x.shape[0] == 3, 1]), c.update([True, 1.0])),
        "compare": lambda c, x: (1 in c, len(c), c <= {1, 2, 3, 4}, c.isdisjoint([7])),
    },
)
DEQUE = Holder(
    lambda: deque([1, 2, 3]),
    {
        "append": lambda c, x: c.append(x),
        "appendleft": lambda c, x: c.appendleft(0),
        "rotate": lambda c, x: c.rotate(2),
        "popleft": lambda c, x: c.popleft(),
        "extendleft": lambda c, x: c.extendleft([7, 8]),
        "insert": lambda c, x: attempt(c.insert, 1, 5),
        "reverse": lambda c, x: c.reverse(),
        "remove": lambda c, x: attempt(c.remove, 2),
        "repeat": lambda c, x: operator.imul(c, 2),
        "join": lambda c, x: operator.iadd(c, [4]),
        "clear": lambda c, x: c.clear(),
        "grow": lambda c, x: grow(c, lambda c, item: c.append(item)),
        "store": lambda c, x: attempt(operator.setitem, c, 0, 9),
        "delete": lambda c, x: attempt(operator.delitem, c, 0),
        "copies": lambda c, x: (c.copy(), c + deque([1]), c * 2),
    },
)
DEFAULTS = Holder(
    lambda: defaultdict(list, a=[1]),
    {
        "missing": lambda c, x: c["n"].append(x),
        "found": lambda c, x: c["a"].append(x),
        "get": lambda c, x: c.get("nothing"),
        "factory": lambda c, x: c.default_factory,
        "no_factory": lambda c, x: without_factory(c),
        "copies": lambda c, x: (c.copy(), c | {"o": 1}, {"o": 1} | c),
    },
)
ORDERED = Holder(
    lambda: OrderedDict(a=1, b=2, c=3),
    {
        "to_end": lambda c, x: attempt(c.move_to_end, "a"),
        "to_front": lambda c, x: attempt(lambda: c.move_to_end("c", last=False)),
        "popitem": lambda c, x: attempt(lambda: c.popitem(last=False)),
        "store": lambda c, x: operator.setitem(c, "d", x),
        "order": lambda c, x: (c == OrderedDict(a=1, b=2, c=3), c == {"c": 3, "b": 2, "a": 1}, list(reversed(c))),
        "update": lambda c, x: c.update({"a": 9, "e": 5}),
        "unions": lambda c, x: (c | {"q": 1}, {"q": 1} | c),
        "views": lambda c, x: views(c),
        "grow": lambda c, x: grow(c, lambda c, key: c.move_to_end(key)),
        "clear": lambda c, x: c.clear(),
    },
)
COUNTER = Holder(
    lambda: Counter(a=2, b=1),
    {
        "count": lambda c, x: operator.setitem(c, "a", c["a"] + 1),
        "missing": lambda c, x: c["nothing"],
        "update": lambda c, x: c.update(["a", "c", "c"]),
        "subtract": lambda c, x: c.subtract(["a"]),
        "most_common": lambda c, x: c.most_common(1),
        "add": lambda c, x: c + Counter("ab"),
        "in_place": lambda c, x: (operator.iadd(c, Counter("ab")), operator.iand(c, Counter("ab"))),
        "elements": lambda c, x: (list(c.elements()), c.total()),
        "delete": lambda c, x: operator.delitem(c, "nothing"),
        "signs": lambda c, x: (+c, -c),
    },
)
CHAIN = Holder(
    lambda: ChainMap({"a": 1}, {"a": 2, "b": 3}),
    {
        "store": lambda c, x: operator.setitem(c, "b", x),
        "read": lambda c, x: (c["a"], c["b"], c.get("n"), "b" in c, len(c), list(c)),
        "delete": lambda c, x: attempt(operator.delitem, c, "a"),
        "child": lambda c, x: operator.setitem(c.new_child(), "z", 1),
        "pop": lambda c, x: attempt(c.pop, "a"),
        "update": lambda c, x: c.update(q=1),
    },
)
EXTENDED = {
    "log": Holder(
        lambda: Log([1]),
        {
            "append": lambda c, x: c.append(x),
            "extend": lambda c, x: c.extend([1, 2]),
            "join": lambda c, x: operator.iadd(c, [4]),
            "repeat": lambda c, x: operator.imul(c, 2),
            "slice": lambda c, x: operator.setitem(c, slice(0, 1), [1, 2, 3]),
            "copies": lambda c, x: (c + [1], c.copy(), c * 2),
            "itself": lambda c, x: contain_itself(c),
        },
    ),
    "tagged": Holder(
        lambda: Tagged([1]), {"tag": lambda c, x: tag(c, 5), "del": lambda c, x: attempt(delattr, c, "tag")}
    ),
    "table": Holder(
        lambda: Table(a=1),
        {
            "missing": lambda c, x: c["n"],
            "store": lambda c, x: operator.setitem(c, "b", x),
            "update": lambda c, x: c.update(z=1),
            "setdefault": lambda c, x: c.setdefault("s", 1),
            "merge": lambda c, x: operator.ior(c, {"m": 2}),
            "copies": lambda c, x: (c.copy(), c | {"k": 1}, dict(c), {**c}),
            "itself": lambda c, x: hold_itself(c),
        },
    ),
    "subtable": Holder(
        lambda: SubTable(a=1), {"missing": lambda c, x: c["n"], "kinds": lambda c, x: list(type(c).kinds)}
    ),
    "recent": Holder(Recent, {"put": lambda c, x: [c.put(key, n) for n, key in enumerate("abac")]}),
    "ring": Holder(
        lambda: Ring([1, 2]),
        {
            "append": lambda c, x: (c.append(x), c.append(2)),
            "popleft": lambda c, x: c.popleft() if c else None,
            "rotate": lambda c, x: c.rotate(1),
            "read": lambda c, x: (len(c), list(c), c.maxlen, c == deque([1, 2])),
            "copies": lambda c, x: (c.copy(), c + deque([5]), c * 2),
        },
    ),
    "bag": Holder(
        lambda: Bag([1, 2]),
        {
            "add": lambda c, x: c.add(5),
            "update": lambda c, x: c.update([7]),
            "merge": lambda c, x: operator.ior(c, {9}),
            "read": lambda c, x: (len(c), 1 in c, sorted(c), c == {1, 2}, {1} <= c),
            "copies": lambda c, x: (c | {3}, {3} - c, c.copy()),
            "discard": lambda c, x: c.discard(1),
        },
    ),
    "fixed": Holder(
        lambda: Fixed([1, 2], "noted"),
        {
            "read": lambda c, x: (len(c), 1 in c, sorted(c), c.tag, c.note, {c: 1}[frozenset([2, 1])]),
            "copies": lambda c, x: (c | {3}, c & {1}, c.copy()),
            "note": lambda c, x: setattr(c, "note", x),
        },
    ),
    "groups": Holder(
        lambda: Groups({"a": [1]}),
        {
            "missing": lambda c, x: c["n"].append(x),
            "found": lambda c, x: c["a"].append(x),
            "read": lambda c, x: (len(c), c.made, sorted(c)),
            "copies": lambda c, x: attempt(c.copy),
        },
    ),
    "tally": Holder(
        lambda: Tally("ab"), {"hit": lambda c, x: (c.hit("a"), c.hit("n")), "top": lambda c, x: c.most_common()}
    ),
    "texts": Holder(
        lambda: Texts({1: 2}),
        {
            "store": lambda c, x: operator.setitem(c, 5, x),
            "read": lambda c, x: (c["1"], list(c)),
            "merge": lambda c, x: c | {9: 9},
        },
    ),
    "items": Holder(
        lambda: Items([1, 2]),
        {"append": lambda c, x: c.append(x), "slice": lambda c, x: operator.setitem(c, slice(0, 1), [5, 6])},
    ),
}
#: Their contents are memory that anything may share: each use is a graph break.
BUFFERS = {
    "bytearray": Holder(
        lambda: bytearray(b"abc"),
        {
            "append": lambda c, x: c.append(100),
            "slice": lambda c, x: operator.setitem(c, slice(0, 2), b"ZZZ"),
            "join": lambda c, x: operator.iadd(c, b"q"),
            "refused": lambda c, x: attempt(operator.setitem, c, 0, 300),
        },
    ),
    "bytes_of_a_class": Holder(lambda: Bytes(b"ab"), {"count": lambda c, x: setattr(c, "count", c.count + len(c))}),
    "array": Holder(
        lambda: array.array("i", [1, 2]), {"append": lambda c, x: c.append(4), "read": lambda c, x: list(c)}
    ),
    "memoryview": Holder(lambda: memoryview(bytearray(b"abc")), {"store": lambda c, x: operator.setitem(c, 0, 65)}),
}
HOLDERS = {
    "list": LIST,
    "dict": DICT,
    "set": SET,
    "deque": DEQUE,
    "bounded": Holder(lambda: deque([1, 2, 3], 3), DEQUE.operations),
    "defaultdict": DEFAULTS,
    "ordered": ORDERED,
    "counter": COUNTER,
    "chain": CHAIN,
    "namespace": Holder(
        lambda: types.SimpleNamespace(a=1, b=[]),
        {"count": lambda c, x: setattr(c, "a", c.a + 1), "append": lambda c, x: c.b.append(c.a)},
    ),
    **EXTENDED,
    **BUFFERS,
}
assert collections.deque is deque
