"""Containers and their subclasses, changed around graphs, through aliases, with breaks, errors and restarts at once."""

import array
import collections
import heapq

import torch

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


class Log(list):
    """A list with a state of its own."""

    def __init__(self, *items, limit=5):
        super().__init__(items)
        self.limit = limit

    def append(self, item):
        if len(self) >= self.limit:
            raise OverflowError("full")
        super().append(item)


class Counts(collections.defaultdict):
    """Counts what it had to make."""

    made = 0

    def __missing__(self, key):
        self.made += 1
        return super().__missing__(key)


class Recent(collections.OrderedDict):
    """Keeps the last three."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > 3:
            self.popitem(last=False)


class Tags(set):
    def add(self, item):
        self.last = item
        super().add(item)


class Pair(tuple):
    __slots__ = ()

    def swapped(self):
        return Pair((self[1], self[0]))


class Ring(collections.deque):
    turned = 0

    def rotate(self, n=1):
        self.turned += n
        super().rotate(n)


def a_full_log_restarts() -> Case:
    log = Log(limit=4)

    def f(x, out):
        y = x * 2
        try:
            for i in range(3):
                out.append(i)
                y = y + len(log)
            log.append(float(y.sum()))
        except OverflowError as error:
            out.limit += 2
            y = y - len(error.args)
        return y, out[-1]

    return Case(f, _xs(log), watch=[log])


def counts_decide_what_is_computed() -> Case:
    counts = Counts(int)

    def f(x, alias):
        for key in ("a", "b", "a"):
            counts[key] += 1
        if counts.made % 2:
            x = x.sin()
        print("break", alias["c"])
        alias.made += 10
        del counts["b"]
        return x * alias["a"] + counts.made, dict(alias)

    return Case(f, _xs(counts), watch=[counts])


def recent_results_kept_in_order() -> Case:
    recent = Recent()

    def f(x, alias, n):
        recent[n] = x * n
        alias[n + 1] = recent[n]
        y = recent.pop(n) + 1
        recent[0] = y
        first = next(iter(alias))
        print(list(recent))
        recent.move_to_end(first, last=False)
        return sum(recent.values()), next(reversed(alias))

    return Case(f, [(torch.arange(3.0) + n, recent, n) for n in (1, 2, 5)], watch=[recent])


def a_set_that_remembers_its_last() -> Case:
    tags = Tags()

    def f(x, alias, tag):
        alias.add(tag)
        y = x + len(tags)
        try:
            alias.add([])
        except TypeError:
            y = y * 2
        if tags.last == []:
            alias.discard(tag)
            print("last", len(tags))
        tags.update({tag, 6})
        return y * len(alias), sorted(tags), tags is alias

    def g(x, alias, tag):
        return f(x, alias, tag) if tag != 5 else f(x, None, tag)

    return Case(g, [(torch.ones(2), tags, t) for t in (1, 2, 5, 1)], watch=[tags])


def a_deque_turned_under_an_iterator() -> Case:
    ring = Ring([1, 2, 3], maxlen=4)

    def f(x, alias):
        seen = iter(ring)
        y = x * next(seen)
        alias.rotate()
        alias.append(len(ring))
        try:
            next(seen)
        except RuntimeError as error:
            y = y + len(str(error))
        ring.extendleft(alias.copy())
        return y, list(ring), alias.turned

    return Case(f, _xs(ring), watch=[ring])


def a_frozenset_of_things_that_change() -> Case:
    class Thing:
        def __init__(self, n):
            self.n, self.t = n, torch.ones(2) * n

    things = frozenset([Thing(1), Thing(2)])

    def f(x):
        total = x * 0
        for thing in sorted(things, key=lambda thing: thing.n):
            thing.t = thing.t + x
            thing.n += 10
            total = total + thing.t
        print("n", sum(thing.n for thing in things))
        for thing in things:
            thing.t.add_(thing.n)
        return total, len(things | {1})

    return Case(f, [(torch.ones(2) * i,) for i in range(3)], watch=[sorted(things, key=lambda thing: thing.n)])


def bytes_written_while_a_graph_fails() -> Case:
    data = bytearray(b"abc")
    view = memoryview(data)

    def f(x, index):
        view[0] = index
        y = x * data[0]
        try:
            z = y[torch.tensor(index)]
        except IndexError:
            view[1] = 99
            z = y.sum()
        return z + data[1], bytes(data), view.tolist()

    return Case(f, [(torch.arange(3.0), i) for i in (1, 7, 2)], watch=[data])


def a_buffer_that_must_not_be_resized() -> Case:
    data = bytearray(b"abc")

    def f(x, resize):
        with memoryview(data) as view:
            y = x + view[0]
            try:
                if resize:
                    data.extend(b"d")
            except BufferError as error:
                y = y * len(type(error).__name__)
        data.extend(b"e")
        return y + len(data)

    return Case(f, [(torch.ones(2), flag) for flag in (False, True, True)], watch=[data])


def numbers_in_an_array_feed_a_graph() -> Case:
    numbers = array.array("d", [1.0, 2.0])

    def f(x, alias):
        numbers.append(float(len(alias)))
        y = x * numbers[-1]
        numbers[0] += 0.5
        z = y + alias[0]
        alias.pop(0)
        return z, numbers.tolist()

    return Case(f, _xs(numbers), watch=[numbers])


def a_heap_of_losses() -> Case:
    heap = []

    def f(x):
        loss = x.sum()
        heapq.heappush(heap, (loss.item(), len(heap)))
        y = x * heap[0][0]
        if len(heap) > 2:
            heapq.heapreplace(heap, (-1.0, 9))
        return y, heap[0]

    return Case(f, _xs(n=4), watch=[heap])


def one_list_in_two_holders() -> Case:
    class Holder:
        def __init__(self, items):
            self.items = items

        @property
        def last(self):
            return self.items[-1]

        @last.setter
        def last(self, value):
            self.items[-1] = value

    items = [torch.ones(3)]
    first, second = Holder(items), Holder(items)

    def f(x, other):
        first.items.append(x)
        other.last = other.last * 2
        del first.items[0]
        y = first.last + 1
        print("len", len(second.items))
        other.items = [*other.items, y]
        first.items.append(y)
        result = y, second.items is first.items, len(items)
        other.items = items
        return result

    return Case(f, _xs(second), watch=[items, first, second])


def sorted_by_a_key_that_counts() -> Case:
    calls = []

    def f(x, items):
        def key(item):
            calls.append(item)
            return -item

        items.sort(key=key)
        y = x * items[0]
        best = max(items, key=key)
        print(best)
        items.sort(key=lambda item: calls.count(item))
        return y + best, list(items), len(calls)

    items = [3, 1, 2]
    return Case(f, _xs(items), watch=[items, calls])


def an_error_in_the_middle_of_an_update() -> Case:
    table = {"a": 1}

    def pairs(x):
        yield "b", x
        yield "c", x + 1
        raise KeyError("no more")

    def f(x, flag):
        y = x * 2
        try:
            table.update(pairs(y) if flag else [("a", y)])
        except KeyError:
            table["caught"] = len(table)
        return [value for value in table.values() if isinstance(value, torch.Tensor)]

    return Case(f, [(torch.ones(2) * i, i != 1) for i in range(3)], watch=[table])


def slices_assigned_from_generators() -> Case:
    items = [0, 1, 2, 3]

    def f(x, alias):
        items[1:3] = (n * 2 for n in alias)
        y = x * len(items)
        try:
            alias[::2] = iter([1])
        except ValueError as error:
            y = y + len(str(error))
        print(len(alias))
        del items[4:]
        items[:] = reversed(alias)
        return y, alias

    return Case(f, _xs(items), watch=[items])


def a_chain_of_maps() -> Case:
    low, high = {"a": 1.0, "b": 2.0}, {"b": 3.0}
    chain = collections.ChainMap(high, low)

    def f(x, n):
        chain["a"] = chain["a"] + n
        child = chain.new_child({"c": n})
        child["b"] = x
        y = child["b"] * child["a"] + child["c"]
        print(sorted(chain))
        del chain["a"]
        low["a"] += 1
        return y, len(child), chain["a"]

    return Case(f, [(torch.ones(2), n) for n in (1, 2, 3)], watch=[low, high])


def a_counter_of_shapes() -> Case:
    counter = collections.Counter()

    def f(x):
        counter[tuple(x.shape)] += 1
        counter.update("ab")
        counter.subtract(b=3)
        y = x * counter.total() + counter["missing"]
        print(counter.most_common(1))
        return y, +counter, list(counter.elements())

    return Case(f, [(torch.ones(2),), (torch.ones(3),), (torch.ones(2),)], watch=[counter])


def tuples_with_methods() -> Case:
    Point = collections.namedtuple("Point", "a b", defaults=[1.0])

    def f(x, pair):
        pair = pair.swapped()
        point = Point(pair[0])
        other = point._replace(b=x)
        made = Point._make([x, pair])
        y = other.b * point.b + made.a
        return y, point.a is pair[0], made, made.b, made._fields

    return Case(f, [(torch.ones(2) * i, Pair((i, [i]))) for i in range(3)])


def popped_while_walked() -> Case:
    def f(x, table):
        y = x
        try:
            for key in table:
                y = y + table[key]
                table.pop(key)
        except RuntimeError as error:
            y = y * len(str(error))
        items = [1, 2, 3, 4]
        for item in items:
            items.remove(item)
            y = y + item
        return y, items

    return Case(f, [(torch.ones(2), {n: n for n in range(k)}) for k in (1, 2, 3)])


def a_cell_a_global_and_a_default() -> Case:
    kept = []
    total = 0

    def f(x, seen=[]):
        nonlocal total
        global _CALLS
        total += 1
        _CALLS = globals().get("_CALLS", 0) + 1
        seen.append(total)
        y = x * total
        kept.extend(seen)
        print(_CALLS)
        total += len(kept)
        seen.clear() if total > 8 else seen.append(y)
        return y + total, len(seen)

    return Case(f, _xs(n=4), watch=[kept, lambda: total])


def setdefault_with_an_alias() -> Case:
    cache = {}

    def f(x, n):
        box = cache.setdefault(n % 2, [])
        box.append(x.cos())
        other = cache.setdefault(n % 2, [1, 2])
        other[-1] = other[-1] + 1
        if len(box) > 1:
            print("two")
            first, *rest = box
            cache[n % 2] = rest
            return first
        return box[0], other is box

    return Case(f, [(torch.ones(2) * n, n) for n in (1, 2, 3, 5, 4)], watch=[cache])
