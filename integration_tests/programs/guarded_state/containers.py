"""Containers changed between calls: dictionaries and their subclasses, sets, deques, chains, iterators and buffers."""

import array
import collections
import itertools
import sys

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, deleting, dropping, setting, storing

family = Family()

THIS = sys.modules[__name__]
KINDS = {"a", "b"}
FIXED = frozenset("ab")
RANGE = range(3)
SLICE = slice(0, 2)


class Computed(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Missing(dict):
    def __missing__(self, key):
        return 7.0


class Doubled(list):
    def __getitem__(self, index):
        return super().__getitem__(index) * 2

    def __len__(self):
        return 10


@family.holder("two", "five", "gone")
def dictionary_with_own_getitem() -> World:
    table = Computed(scale=2.0)

    def f(x):
        return x * table["scale"], table.get("scale"), dict(table), list(table.values())

    return World(f, [storing(table, scale=2.0), storing(table, scale=5.0), dropping(table, "scale")])


@family.holder("own", "replaced", "inherited")
def getitem_of_a_dictionary_replaced() -> World:
    table, own = Computed(scale=2.0), Computed.__getitem__

    def f(x):
        return x * table["scale"]

    states = [
        setting(Computed, __getitem__=own),
        setting(Computed, __getitem__=lambda self, key: 9.0),
        deleting(Computed, "__getitem__"),
    ]
    return World(f, states)


@family.holder("two", "five")
def getitem_of_a_dictionary_with_a_cell() -> World:
    value = 2.0

    class Table(dict):
        def __getitem__(self, key):
            return value

        def __contains__(self, key):
            return value > 3

    table = Table(a=1)

    def put(new):
        nonlocal value
        value = new

    def f(x):
        return x * table["nothing"], "a" in table, len(table)

    return World(f, [lambda: put(2.0), lambda: put(5.0)])


@family.holder("present", "missing", "replaced")
def dictionary_with_missing() -> World:
    table, own = Missing(), Missing.__missing__

    def present():
        Missing.__missing__ = own
        table["scale"] = 2.0

    def missing():
        present()
        del table["scale"]

    def replaced():
        missing()
        Missing.__missing__ = lambda self, key: len(key)

    def f(x):
        return x * table["scale"], table.get("scale"), "scale" in table

    return World(f, [present, missing, replaced], watch=[table])


@family.holder("ab", "ba", "abc")
def ordered_dictionary() -> World:
    table = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        first = next(iter(table))
        return x * table[first], list(table), list(reversed(table)), table == {"b": 2.0, "a": 1.0}

    def order(*names):
        def put():
            table.clear()
            table.update({name: float(n + 1) for n, name in enumerate(names)})

        return put

    return World(f, [order("a", "b"), order("b", "a"), order("a", "b", "c")])


@family.holder("ab", "ba")
def ordered_dictionary_reordered_inside() -> World:
    table = collections.OrderedDict(a=1.0, b=2.0)

    def order(*names):
        def put():
            table.clear()
            table.update(dict.fromkeys(names, 1.0))

        return put

    def f(x):
        before = list(table)
        table.move_to_end("a")
        last = table.popitem(last=False)
        table["c"] = 3.0
        table.move_to_end("c", last=False)
        return x * len(table), before, last, list(table), collections.OrderedDict.fromkeys("ab")

    return World(f, [order("a", "b"), order("b", "a")], watch=[table])


@family.holder("zero", "five", "none")
def default_dictionary() -> World:
    table = collections.defaultdict(float)

    def state(factory):
        def put():
            table.clear()
            table.default_factory = factory

        return put

    def f(x):
        return x * table["new"], len(table), dict(table)

    return World(f, [state(float), state(lambda: 5.0), state(None)], watch=[table])


@family.holder("both", "one", "other")
def set_members() -> World:
    def f(x):
        return x * (2 if "b" in KINDS else 3), len(KINDS), KINDS | {"z"} == {"a", "b", "z"}

    def members(*names):
        def put():
            KINDS.clear()
            KINDS.update(names)

        return put

    return World(f, [members("a", "b"), members("a"), members("b", "c")])


@family.holder("letters", "numbers", "set_")
def frozen_set_replaced() -> World:
    def f(x):
        return x * (2 if "a" in FIXED else 3), len(FIXED), isinstance(FIXED, frozenset)

    return World(f, [setting(THIS, FIXED=kind) for kind in (frozenset("ab"), frozenset((1, 2, 3)), {"a"})])


@family.holder("ab", "ba", "bounded")
def double_ended_queue() -> World:
    holder = collections.namedtuple("Holder", "queues")([None])

    def f(x):
        queue = holder.queues[0]
        queue.append(7.0)
        queue.rotate(1)
        return x * queue[0], list(queue), queue.maxlen

    def state(items, maxlen=None):
        return lambda: holder.queues.__setitem__(0, collections.deque(items, maxlen))

    return World(f, [state((1.0, 2.0)), state((2.0, 1.0)), state((1.0, 2.0), 2)], watch=[holder])


@family.holder("front", "back", "both")
def chain_map() -> World:
    front, back = {}, {}
    chain = collections.ChainMap(front, back)

    def f(x):
        return x * chain["scale"], len(chain), chain.maps[0] is front

    def state(*values):
        def put():
            for table, value in zip((front, back), values, strict=True):
                (storing(table, scale=value) if value else dropping(table, "scale"))()

        return put

    return World(f, [state(2.0, None), state(None, 5.0), state(3.0, 5.0)])


@family.holder("one", "two", "absent")
def counter() -> World:
    counts = collections.Counter()

    def f(x):
        seen = counts["a"]
        counts["b"] += 1
        counts.update("ab")
        return x * seen, counts.most_common(1), counts["nothing"]

    def state(**items):
        def put():
            counts.clear()
            counts.update(items)

        return put

    return World(f, [state(a=1), state(a=2), state()], watch=[counts])


@family.holder("two", "five", "longer")
def user_containers() -> World:
    table, items = collections.UserDict(a=2.0), collections.UserList([1.0])

    def f(x):
        return x * table["a"] * items[-1], len(items), list(table)

    def state(value, *more):
        def put():
            table["a"] = value
            items.data = [1.0, *more]

        return put

    return World(f, [state(2.0), state(5.0), state(5.0, 3.0)])


@family.holder("two", "five", "longer")
def list_with_own_methods() -> World:
    items = Doubled([2.0])

    def f(x):
        return x * items[0], len(items), list(items), list.__len__(items)

    def state(*values):
        return lambda: items.__setitem__(slice(None), values)

    return World(f, [state(2.0), state(5.0), state(5.0, 1.0)])


@family.holder("list_", "tuple_", "tensor", "dictionary")
def container_of_another_kind() -> World:
    holder: dict = {}

    def f(x):
        items = holder["items"]
        return x * items[0], type(items).__name__, len(items)

    kinds = [2.0, 3.0], (2.0, 3.0), torch.tensor([2.0, 3.0]), {0: 2.0}
    return World(f, [storing(holder, items=kind) for kind in kinds])


@family.holder("equal", "other_equal", "same")
def containers_that_are_one() -> World:
    a: list = []
    holder: dict = {"a": a}

    def f(x):
        holder["a"].append(1)
        return x * len(holder["b"]), holder["a"] is holder["b"], holder["a"] == holder["b"]

    def state(make):
        def put():
            a.clear()
            holder["b"] = make()

        return put

    return World(f, [state(list), state(lambda: [1]), state(lambda: a)], watch=[holder])


@family.holder("two", "five")
def tuple_of_lists() -> World:
    fixed = ([2.0], {"a": 1.0})

    def f(x):
        fixed[0].append(fixed[1]["a"])
        return x * fixed[0][0], len(fixed[0]), fixed

    def state(value):
        def put():
            fixed[0][:] = [value]
            fixed[1]["a"] = value + 1

        return put

    return World(f, [state(2.0), state(5.0)])


@family.holder("start", "further", "at_the_end")
def iterator_shared() -> World:
    holder: dict = {}

    def f(x):
        it = holder["it"]
        return x * next(it), next(it, "end"), list(itertools.islice(it, 1))

    def state(*values):
        return lambda: holder.update(it=iter(list(values)))

    return World(f, [state(1.0, 2.0, 3.0, 4.0), state(2.0, 3.0, 4.0), state(4.0)])


@family.holder("one", "five", "by_two")
def counting_iterator() -> World:
    holder: dict = {}

    def f(x):
        return x * next(holder["it"]), next(holder["it"]), repr(holder["it"])

    return World(f, [lambda a=a: holder.update(it=itertools.count(*a)) for a in ((1,), (5,), (1, 2))])


@family.holder("three", "five", "empty")
def range_replaced() -> World:
    def f(x):
        return [x * k for k in RANGE], len(RANGE), RANGE

    return World(f, [setting(THIS, RANGE=r) for r in (range(3), range(1, 5, 2), range(0))])


@family.holder("two", "step", "all_")
def slice_replaced() -> World:
    def f(x):
        return x[SLICE] * 2, SLICE.step

    return World(f, [setting(THIS, SLICE=s) for s in (slice(0, 2), slice(0, 3, 2), slice(None))])


@family.holder("ab", "abc", "values_changed")
def dictionary_view_held() -> World:
    table: dict = {}
    keys, values, items = table.keys(), table.values(), table.items()

    def f(x):
        return x * sum(values), list(keys), list(items), len(keys)

    def state(**entries):
        def put():
            table.clear()
            table.update(entries)

        return put

    return World(f, [state(a=1.0, b=2.0), state(a=1.0, b=2.0, c=3.0), state(a=3.0, b=2.0)])


@family.holder("two", "five", "longer")
def array_of_numbers() -> World:
    numbers = array.array("d", [2.0])

    def f(x):
        return x * numbers[0], len(numbers)

    def state(*values):
        def put():
            del numbers[:]
            numbers.extend(values)

        return put

    return World(f, [state(2.0), state(5.0), state(5.0, 1.0)])


@family.holder("two", "five", "longer")
def bytes_in_place() -> World:
    buffer = bytearray([2])

    def f(x):
        return x * buffer[0], len(buffer), bytes(buffer)

    def state(*values):
        return lambda: buffer.__setitem__(slice(None), bytes(values))

    return World(f, [state(2), state(5), state(5, 1)])


@family.holder("number", "text", "tuple_", "object_")
def key_of_another_kind() -> World:
    table: dict = {}
    objects = [object()]

    def f(x):
        (key,) = table
        return x * table[key], type(key).__name__

    keys = 1, "one", (1, "one"), objects[0]

    def state(key):
        def put():
            table.clear()
            table[key] = 2.0

        return put

    return World(f, [state(key) for key in keys])


@family.holder("plain", "nested", "cyclic")
def container_within_itself() -> World:
    node: dict = {}

    def f(x):
        inner = node["next"]
        return x * inner["value"], inner is node

    def state(make):
        def put():
            node.clear()
            node.update(value=2.0, next=make())

        return put

    states = state(lambda: {"value": 3.0}), state(lambda: {"value": 4.0, "next": {}}), state(lambda: node)
    return World(f, states)


@family.program
def results_changed_by_the_caller() -> Case:
    log: list = []

    def f(x):
        made = [1.0, {"a": 2.0}, torch.tensor([1.0, 2.0]), torch.zeros(2)]
        log.append(made)
        return x * made[0] + made[1]["a"], made[2] * 2

    def spoil():
        if log:
            made = log[-1]
            made[0] = 9.0
            made[1]["a"] = 9.0
            made[2].fill_(9)
            made[3].fill_(9)

    return Case(f, [(torch.ones(2),)] * 4, before=[spoil] * 4, watch=[log])


@family.program
def keys_deleted_while_another_call_holds_them() -> Case:
    table = {"a": torch.ones(2), "b": torch.zeros(2)}

    def f(x, drop):
        total = x + sum(table.values())
        for key in [key for key in table if key == drop]:
            table["was " + key] = table.pop(key)
        return total, list(table)

    calls = [(torch.ones(2), drop) for drop in ("b", "b", "a", "a")]
    return Case(f, calls, watch=[table], before=[lambda: table.setdefault("b", torch.ones(2))] * 4)
