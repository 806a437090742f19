"""Containers where programs keep them: in cells, globals, modules, classes, defaults, each other and themselves."""

import collections
import functools
import heapq
import itertools
import sys
import types

import torch

from integration_tests.harness.differential import Case

HISTORY: list = []
COUNTS: collections.Counter = collections.Counter()
SETTINGS = {"scale": 2.0, "seen": []}


class Registry:
    """A class whose containers all its objects share."""

    known: dict = {}
    order: collections.deque = collections.deque(maxlen=3)

    def __init__(self, name):
        self.name = name
        self.known.setdefault(name, []).append(self)
        type(self).order.append(name)


class Node:
    def __init__(self, value, children=None):
        self.value = value
        self.children = [] if children is None else children

    def add(self, child):
        self.children += [child]
        return child


class Slotted:
    __slots__ = ("items", "table")

    def __init__(self):
        self.items, self.table = [], {}


class Watched(dict):
    """Counts stores and deletions by overridden methods."""

    def __init__(self, *args, **kwargs):
        self.log = []
        super().__init__(*args, **kwargs)

    def __setitem__(self, key, value):
        self.log.append(("set", key))
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.log.append(("del", key))
        super().__delitem__(key)


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def in_a_cell() -> Case:
    log, total = [], 0

    def f(x):
        nonlocal total
        log.append(x.shape[0])
        total += len(log)
        log[:1] = [total, total]
        return x * total, list(log)

    return Case(f, _xs(), watch=[log])


def in_a_cell_of_a_new_function() -> Case:
    def f(x):
        log = []

        def note(item):
            log.append(item)
            return log

        note(1)
        y = x * 2
        note(y)
        return note, log, y + len(log)

    return Case(f, _xs())


def in_globals() -> Case:
    def f(x):
        global SETTINGS
        HISTORY.append(x.shape)
        COUNTS["calls"] += 1
        COUNTS.update(["a", "b"])
        SETTINGS["seen"] += [COUNTS["calls"]]
        old = SETTINGS
        SETTINGS = {**SETTINGS, "scale": old["scale"] + 1}
        return x * SETTINGS["scale"], old["seen"] is SETTINGS["seen"]

    module = sys.modules[__name__]
    return Case(f, _xs(), watch=[HISTORY, COUNTS, vars(module)["SETTINGS"]])


def in_a_module() -> Case:
    module = types.ModuleType("kept_here")
    module.queue = collections.deque([1, 2], maxlen=3)
    module.names = {"a"}

    def f(x):
        module.queue.append(len(module.queue))
        module.names |= {"b", "c"}
        module.fresh = [x * 2]
        return x + module.queue[0], sorted(module.names)

    return Case(f, _xs(), watch=[module.queue, module.names])


def in_a_class() -> Case:
    def f(x, name):
        made = Registry(name)
        Registry.known[name][0].value = x * 2
        return made, x + len(Registry.known), list(Registry.order)

    return Case(f, [(torch.ones(2), name) for name in "abacd"], watch=[Registry.known, Registry.order])


def in_defaults() -> Case:
    def f(x, log=[], *, table={"n": 0}):
        log.append(table["n"])
        table["n"] += 1
        return x * table["n"], log

    return Case(f, _xs(), watch=[f.__defaults__, f.__kwdefaults__])


def in_defaults_of_a_helper() -> Case:
    def remember(item, memory=[]):
        memory.append(item)
        return memory

    def f(x):
        remember(1)
        y = x * 2
        return y + len(remember(y)), remember(3)

    return Case(f, _xs())


def in_a_default_of_a_new_function() -> Case:
    def f(x):
        def remember(item, memory=[]):
            memory.append(item)
            return memory

        remember(1)
        return remember, remember(x * 2)

    return Case(f, _xs())


def in_slots() -> Case:
    obj = Slotted()

    def f(x):
        obj.items += [len(obj.items)]
        obj.table["last"] = x * 2
        obj.table |= {"n": len(obj.items)}
        kept, obj.items = obj.items, [*obj.items]
        return x + obj.table["n"], kept is obj.items, kept

    return Case(f, _xs(), watch=[obj])


def in_a_namespace() -> Case:
    space = types.SimpleNamespace(items=[], inner=types.SimpleNamespace(n=1))

    def f(x):
        space.items += [space.inner.n]
        vars(space)["last"] = x * 2
        space.inner.n += 1
        made = types.SimpleNamespace(**vars(space.inner), items=space.items)
        made.itself = made
        same = types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1), made != space
        try:
            made.missing
        except AttributeError as error:
            return made, x + space.inner.n, same, str(error)

    return Case(f, _xs(), watch=[space])


def in_each_other() -> Case:
    tree = Node(1, [Node(2), Node(3)])

    def f(x):
        leaf = tree.add(Node(x * 2, [tree]))
        tree.children[0].children = tree.children
        del tree.children[1]
        return leaf, x + len(tree.children)

    return Case(f, _xs(), watch=[tree])


def in_themselves() -> Case:
    items: list = [1]
    table: dict = {}

    def f(x):
        items.append(items)
        table["self"] = table
        table["items"] = items
        fresh: list = [x * 2]
        fresh.append({"fresh": fresh})
        return fresh, items[-1] is items, table["self"]["items"] is items, x + len(items)

    return Case(f, _xs(), watch=[items, table])


def in_a_frozen_set_as_a_key() -> Case:
    table = {frozenset({1, 2}): "a", frozenset(): []}

    def f(x):
        table[frozenset({2, 1})] += "b"
        table[frozenset()].append(x.shape[0])
        table[frozenset({frozenset({3})})] = x * 2
        return x + len(table), frozenset({1, 2}) in table

    return Case(f, _xs(), watch=[table])


def in_two_arguments() -> Case:
    shared: list = [1]

    def f(x, a, b, holder):
        a.append(2)
        holder["a"] += [3]
        b = b + [4]
        b += [5]
        return x * len(a), a is holder["a"], b

    return Case(f, _xs(shared, shared, {"a": shared}), watch=[shared])


def in_a_named_tuple() -> Case:
    Pair = collections.namedtuple("Pair", "left right")
    pair = Pair([1], {"k": []})

    def f(x):
        pair.left.append(pair)
        pair.right["k"] += pair.left[:1]
        return x + len(pair.left), pair._replace(left=pair.right["k"])

    return Case(f, _xs(), watch=[pair.left, pair.right])


def in_a_partial() -> Case:
    log: list = []
    note = functools.partial(lambda items, item: items.append(item) or len(items), log)

    def f(x):
        return x * note(x * 2) + note("after"), log[-1]

    return Case(f, _xs(), watch=[log])


def with_state_of_its_own() -> Case:
    table = Watched(a=1)

    def f(x):
        table["b"] = x * 2
        del table["a"]
        table.update(c=3)
        table.setdefault("a", 1)
        table.extra = len(table.log)
        return x + table.extra, table.pop("c"), list(table)

    return Case(f, _xs(), watch=[table])


def views_read_after_changes() -> Case:
    table = {"a": 1, "b": 2}
    ordered = collections.OrderedDict(table)

    def f(x):
        keys, values, items = table.keys(), table.values(), ordered.items()
        table["c"] = x.shape[0]
        ordered.move_to_end("a")
        first = list(keys), list(items)
        del table["a"]
        table["a"] = 4
        print(list(values))
        ordered.popitem(last=False)
        return x + len(keys), first, list(values), list(items), keys & {"a", "z"}, "a" in keys

    return Case(f, _xs(n=2), watch=[table, ordered])


def a_view_given_out() -> Case:
    def f(x):
        table = {"a": x * 2}
        keys = table.keys()
        table["b"] = 1
        return table, keys

    return Case(f, _xs())


def a_view_of_an_extended_dict_given_out() -> Case:
    def f(x):
        table = Watched(a=1)
        values = table.values()
        table["b"] = x * 2
        return table, list(values), values

    def shown(x):
        table, listed, values = f(x)
        table["c"] = 3
        return table, listed, list(values)

    return Case(shown, _xs())


def iterators_half_used() -> Case:
    items = [1, 2, 3, 4]

    def f(x):
        taken = iter(items)
        first = next(taken)
        items.append(first)
        for item in taken:
            if item == 3:
                break
        return x * first, list(taken), list(itertools.islice(items, 2))

    return Case(f, _xs(n=2), watch=[items])


def changed_under_an_iterator() -> Case:
    table, members, ring = {"a": 1}, {1}, collections.deque([1])

    def grow(container, step):
        try:
            for item in container:
                step(item)
        except RuntimeError as error:
            return type(error).__name__, str(error)
        return "no error"

    def f(x):
        first = grow(table, lambda key: table.__setitem__(key + "!", 1))
        second = grow(ring, lambda item: ring.append(item + 1))
        third = grow([*members], lambda item: members.add(item + 1))
        return x + len(table), first, second, third

    return Case(f, _xs(n=2), watch=[table, members, ring])


def a_list_changed_while_it_is_sorted() -> Case:
    items = [3, 1, 2]

    def f(x, grow):
        seen = []

        def key(item):
            seen.append(len(items))
            if grow:
                items.append(item)
            return item

        try:
            items.sort(key=key)
        except ValueError as error:
            return x, str(error), seen
        return x * items[0], seen

    return Case(f, [(torch.ones(2), flag) for flag in (False, True, False)], watch=[items])


def a_sort_that_raises_half_way() -> Case:
    items = [3, "a", 1, 2]

    def f(x):
        try:
            items.sort()
        except TypeError as error:
            return x * 2, str(error), list(items)
        return x

    return Case(f, _xs(n=2), watch=[items])


def sorting() -> Case:
    rows = [("b", 2), ("a", 2), ("c", 1)]

    def f(x):
        rows.sort(key=lambda row: row[1], reverse=True)
        by_name = sorted(rows)
        rows[1:] = by_name[:1]
        return x * len(rows), by_name, min(rows), max(rows, key=lambda row: row[0])

    return Case(f, _xs(n=2), watch=[rows])


def slices() -> Case:
    items = list(range(6))

    def f(x):
        items[1:3] = [x * 2, "two", "three"]
        del items[::3]
        items[::-2] = items[::2]
        items[len(items) :] = [items[0]]
        items[0:0] = (7, 8)
        return x + len(items), items[-2:]

    return Case(f, _xs(n=2), watch=[items])


def slices_of_wrong_sizes() -> Case:
    items = [1, 2, 3, 4]

    def f(x):
        try:
            items[::2] = [1, 2, 3]
        except ValueError as error:
            return x * 2, str(error)

    return Case(f, _xs(n=2), watch=[items])


def a_heap() -> Case:
    heap: list = []

    def f(x, values):
        for value in values:
            heapq.heappush(heap, (value, len(heap)))
        smallest = heapq.heappop(heap)
        return x * smallest[0], heapq.nsmallest(2, heap), heapq.heappushpop(heap, (0, 0))

    return Case(f, _xs([3, 1, 2], n=2), watch=[heap])


def a_cache_by_hand() -> Case:
    cache: collections.OrderedDict = collections.OrderedDict()

    def f(x, key):
        if key in cache:
            cache.move_to_end(key)
            return cache[key] + 0
        cache[key] = x * len(key)
        if len(cache) > 2:
            cache.popitem(last=False)
        return cache[key]

    return Case(f, [(torch.ones(2), key) for key in ("a", "bb", "a", "ccc", "bb")], watch=[cache])


def factories() -> Case:
    made: list = []

    def factory():
        made.append(len(made))
        return [made[-1]]

    table = collections.defaultdict(factory)

    def f(x, key):
        table[key].append(x.shape[0])
        table.get("never")
        counts = collections.defaultdict(lambda: collections.defaultdict(int))
        counts[key]["n"] += 1
        return x + len(table), table[key], dict(counts[key])

    return Case(f, [(torch.ones(2), key) for key in "aba"], watch=[table, made])


def a_factory_replaced() -> Case:
    table = collections.defaultdict(list)

    def f(x, key):
        table[key].append(1)
        table.default_factory = None
        try:
            table["other"]
        except KeyError as error:
            text = str(error)
        table.default_factory = dict
        table["dict " + key]["k"] = x * 2
        table.default_factory = list
        return x * 2, text

    return Case(f, [(torch.ones(2), key) for key in "ab"], watch=[table])


def unions() -> Case:
    plain, ordered = {"a": 1}, collections.OrderedDict(b=2)
    default = collections.defaultdict(list, c=[3])

    def f(x):
        mixed = [plain | ordered, ordered | plain, plain | default, default | ordered, ordered | default]
        mixed[3]["new"].append(x.shape[0])
        merged = Watched(z=1) | plain
        ordered.update(plain | {"d": x * 2})
        return x + len(ordered), mixed, merged

    return Case(f, _xs(n=2), watch=[plain, ordered, default])


def a_set_of_sets() -> Case:
    family = {frozenset({1}), frozenset({1, 2})}

    def f(x):
        family.add(frozenset({3}) | frozenset({4}))
        family.discard({1})
        largest = max(len(member) for member in [frozenset({1, 2}), *[frozenset()]])
        return x * largest, {1, 2} in family, len(family)

    return Case(f, _xs(n=2), watch=[family])


def buffers() -> Case:
    data = bytearray(b"abc")
    view = memoryview(data)

    def f(x):
        data[0] = x.shape[0]
        view[1] = data[0] + 1
        y = x * data[1]
        return y + view[1], bytes(data)

    return Case(f, _xs(n=2), watch=[data])


def stacks_of_tensors() -> Case:
    stack = [torch.zeros(3)]

    def f(x):
        stack.append(stack[-1] + x)
        stack[0] += 1
        stack[0].mul_(2)
        top = stack.pop()
        stack[:] = [*stack, top, top]
        return top * 2, stack[-1] is stack[-2]

    return Case(f, _xs(n=2), watch=[stack])
