"""Corners of the language inside compiled functions."""

import copy
import warnings
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field, replace
from enum import Enum, Flag, IntEnum, auto
from functools import cached_property, lru_cache, partial, reduce, singledispatch, wraps
from typing import NamedTuple

import torch

from integration_tests.harness.differential import Case

X = (2, 3)


def _calls(f, n: int = 3, **kw) -> Case:
    return Case(f, [(torch.randn(X),) for _ in range(n)], **kw)


def counters_in_closures() -> Case:
    def make():
        total = 0
        history: list = []

        def add(n):
            nonlocal total
            total += n
            history.append(total)
            return total

        def get():
            return total, list(history)

        return add, get

    add, get = make()

    def f(x):
        add(x.shape[0])
        y = x * add(1)
        return y, get()

    return _calls(f)


def late_binding_of_loop_variables() -> Case:
    def f(x):
        late = [lambda t: t * i for i in range(3)]
        early = [lambda t, i=i: t * i for i in range(3)]
        return [g(x) for g in late], [g(x) for g in early]

    return _calls(f)


def mutable_default_argument() -> Case:
    def append(item, to=[]):
        to.append(item)
        return to

    def f(x):
        return x * len(append(x.shape[0])), list(append(1))

    return _calls(f)


def generator_protocol() -> Case:
    def gen(n, log):
        got = None
        try:
            for i in range(n):
                got = yield i if got is None else got
        except KeyError as error:
            log.append(repr(error))
            yield -1
        finally:
            log.append("closed")
        return "end"

    def delegating(n, log):
        result = yield from gen(n, log)
        log.append(result)

    def f(x):
        log: list = []
        g = gen(5, log)
        values = [next(g), g.send(7), next(g), g.throw(KeyError("k"))]
        g.close()
        h = list(delegating(3, log))
        first = next(gen(2, log))
        return x * sum(values), values, h, first, [entry for entry in log if entry != "closed"]

    return _calls(f)


def generator_left_half_way() -> Case:
    def numbers():
        n = 0
        while True:
            n += 1
            yield n

    source = numbers()

    def f(x):
        return x * next(source), x + next(source)

    return _calls(f)


def iterator_shared_between_calls() -> Case:
    source = iter([1, 2, 3, 4, 5, 6, 7])
    pairs = zip("abc", range(9), strict=False)

    def f(x):
        return x * next(source), next(pairs, None), next(source)

    return _calls(f)


def mutation_while_iterating() -> Case:
    def f(x):
        items = [1, 2, 3]
        seen = []
        for item in items:
            seen.append(item)
            if len(items) < 6:
                items.append(item * 10)
        table = {"a": 1, "b": 2}
        try:
            for key in table:
                table[key + "!"] = 0
        except RuntimeError as error:
            seen.append(str(error))
        grown = {1, 2}
        try:
            for n in grown:
                grown.add(n + 10)
        except RuntimeError as error:
            seen.append(str(error))
        return x * len(seen), seen

    return _calls(f)


def order_of_dicts() -> Case:
    table: dict = {"z": 1, "a": 2}

    def f(x):
        table["m"] = table.pop("z", 0) + 1
        table["z"] = len(table)
        merged = {**table, "a": 9} | {"b": 0}
        return x * table["m"], list(table), list(merged.items()), list(reversed(table))

    return _calls(f, watch=[table])


def raise_from_and_context() -> Case:
    class Mine(Exception):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    def inner(n):
        try:
            return {}[n]
        except KeyError as error:
            raise Mine(n) from error

    def f(x):
        out = []
        try:
            inner(3)
        except Mine as error:
            out += [error.code, str(error), type(error.__cause__).__name__, error.__cause__.args]
        try:
            try:
                raise ValueError("first")
            finally:
                out.append("cleanup")
                raise TypeError("second")
        except TypeError as error:
            out.append(type(error.__context__).__name__)
            out.append(error.__suppress_context__)
        return x * len(out), out

    return _calls(f)


def finally_overrides() -> Case:
    def returns():
        try:
            return 1
        finally:
            return 2

    def breaks():
        for i in range(3):
            try:
                raise ValueError
            finally:
                break
        return i

    def continues():
        n = 0
        for _ in range(3):
            try:
                n += 1
                continue
            finally:
                n += 10
        return n

    def f(x):
        return x * returns(), breaks(), continues()

    return _calls(f)


def exception_groups() -> Case:
    def f(x):
        seen = []
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2), ValueError(3)])
        except* ValueError as group:
            seen.append(len(group.exceptions))
        except* KeyError as group:
            seen.append(str(group))
        return x * len(seen), seen

    return _calls(f)


def star_expressions() -> Case:
    def f(x):
        a, *b, c = range(5)
        (d, [e, *g]), h = (1, [2, 3, 4]), 5
        first, *_ = x.unbind(0)
        return x * a + c, b, d, e, g, h, first, [*b, *g], {"k": 1}

    return _calls(f)


class Color(Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self):
        return self.value * 10


class Level(IntEnum):
    LOW = auto()
    HIGH = auto()


class Mode(Flag):
    A = auto()
    B = auto()


def enums() -> Case:
    def f(x, color, level):
        y = x * color.weight if color is Color.RED else x
        both = Mode.A | Mode.B
        return y + level, Color(2).name, Color["RED"], level > Level.LOW, Mode.A in both, {color: 1}[color], list(Color)

    return Case(f, [(torch.randn(X), Color.RED, Level.LOW), (torch.randn(X), Color.BLUE, Level.HIGH)])


class Point(NamedTuple):
    x: torch.Tensor
    y: float = 2.0

    def scaled(self, k):
        return self._replace(y=self.y * k)


Pair = namedtuple("Pair", "left right", defaults=[5])


def named_tuples() -> Case:
    def f(x, pair):
        p = Point(x).scaled(3)
        left, right = pair
        return p.x * p.y, p, pair._asdict(), Pair(left), right, isinstance(p, tuple), Point._fields

    return Case(f, [(torch.randn(X), Pair(1, 2)), (torch.randn(X), Pair("a"))])


@dataclass
class Config:
    scale: float
    names: list = field(default_factory=list)
    total: float = field(init=False, default=0.0)

    def __post_init__(self):
        self.total = self.scale * 2


@dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "b"


def dataclasses_() -> Case:
    config = Config(2.0)

    def f(x):
        other = replace(config, scale=config.scale + 1)
        config.names.append(other.scale)
        config.scale += 1
        key = Key(1)
        try:
            key.a = 2
        except AttributeError as error:
            failed = type(error).__name__
        return x * other.total, other, failed, {key: 1}[Key(1)], Key(1) < Key(2), repr(key), config == other

    return _calls(f, watch=[config])


def collections_() -> Case:
    ring = deque([1, 2], maxlen=3)
    counts: Counter = Counter()
    groups: defaultdict = defaultdict(list)
    order: OrderedDict = OrderedDict(a=1, b=2)

    def f(x):
        ring.append(x.shape[1])
        ring.rotate(1)
        counts.update("ab")
        counts["a"] += 1
        groups[len(ring)].append(ring[0])
        order.move_to_end("a")
        chain = ChainMap({"k": 1}, {"k": 2, "j": 3})
        return x * counts["a"], counts.most_common(1), chain["k"] + chain["j"], list(order), order.popitem(last=False)

    return _calls(f, 2, watch=[ring, counts, groups])


def functools_() -> Case:
    calls: list = []

    @lru_cache(None)
    def cached(n):
        calls.append(n)
        return n * 2

    @singledispatch
    def describe(value):
        return "object"

    @describe.register
    def _(value: int):
        return "int"

    def logged(fn):
        @wraps(fn)
        def wrapper(*args, **kwargs):
            calls.append(fn.__name__)
            return fn(*args, **kwargs)

        return wrapper

    @logged
    def scale(x, k=2):
        return x * k

    def f(x):
        y = scale(x, k=cached(3))
        return y, describe(1), describe("a"), reduce(lambda a, b: a * b, [1, 2, 3]), partial(scale, k=5)(x), list(calls)

    return _calls(f, watch=[calls])


def strings() -> Case:
    def f(x):
        name, n = "ab", 3.14159
        text = f"{name!r:>6}|{n:.2f}|{x.shape[0]:03d}|{n=:.1f}|{'nested ' + f'{n:{5}.{2}f}'}"
        joined = ",".join(str(d) for d in x.shape)
        percent = "%s-%d" % (name, n)  # noqa: UP031
        return x * len(text), text, joined, percent, "{}{k}".format(1, k=n), name.upper().center(6, "*")  # noqa: UP032

    return _calls(f)


def walrus_and_comprehension_scopes() -> Case:
    def f(x):
        if (n := x.shape[0]) > 1:
            y = x * n
        last = [m := i * 2 for i in range(3)]
        nested = {k: [v for v in range(k)] for k in range(3)}
        pairs = {(a, b) for a in range(2) for b in range(2) if a != b}
        return y, last, m, nested, sorted(pairs)

    return _calls(f)


def warnings_and_print() -> Case:
    def f(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("careful", UserWarning, stacklevel=1)
            y = x * 2
        print("one", len(caught), sep="-")
        print("two", end="!\n")
        return y + 1, [str(w.message) for w in caught]

    return _calls(f)


def recursion() -> Case:
    def tree(x, depth):
        if depth == 0:
            return x, 1
        left, n = tree(x * 2, depth - 1)
        right, m = tree(x + 1, depth - 1)
        return left + right, n + m + 1

    def f(x):
        return tree(x, 3)

    return _calls(f)


def identity_and_equality() -> Case:
    big = 10**20
    other = int("1" + "0" * 20)
    shared: list = []

    def f(x, a, b):
        return x * (1 if a is b else 2), a == b, a is a, x is x, [x] == [x], a in (b,), shared is shared

    one, two = [1], [1]
    return Case(
        f,
        [
            (torch.ones(2), one, one),
            (torch.ones(2), one, two),
            (torch.ones(2), big, other),
            (torch.ones(2), big, big),
            (torch.ones(2), None, None),
            (torch.ones(2), "a", "a"),
            (torch.ones(2), 1, True),
            (torch.ones(2), 1.0, 1),
        ],
    )


def sentinels() -> Case:
    missing = object()

    def f(x, value=missing, table=None):
        found = (table or {}).get("k", missing)
        return x * (1 if value is missing else 2), found is missing, value is None

    return Case(
        f, [(torch.ones(2),), (torch.ones(2), None), (torch.ones(2), missing, {"k": missing}), (torch.ones(2), 3)]
    )


def id_of_objects() -> Case:
    def f(x, a, b):
        table = {id(a): 1, id(b): 2}
        return x * len(table), id(a) == id(b), table[id(b)]

    one, two = [1], [1]
    return Case(f, [(torch.ones(2), one, two), (torch.ones(2), one, one), (torch.ones(2), two, one)])


def numbers() -> Case:
    def f(x, n, r):
        return (
            x * (n // 3),
            n % -3,
            -n // 3,
            divmod(n, 3),
            round(r),
            round(r, 1),
            int(r),
            r.is_integer(),
            n.bit_length(),
            (n << 3) | 1,
            n**-1,
            0.1 + 0.2,
            1e308 * 10,
            -0.0,
            complex(n, r) * 2j,
            abs(-n),
            max(n, r),
            min([n, 2]),
            sum([r, n]),
        )

    return Case(f, [(torch.ones(2), 7, 2.5), (torch.ones(2), -7, -0.5), (torch.ones(2), 8, 3.5)])


def slices_and_sequences() -> Case:
    def f(x):
        items = list(range(6))
        items[1:3] = [9]
        items[::2] = [0] * len(items[::2])
        del items[-1:]
        items += (7, 8)
        items *= 2
        copied = items[:]
        copied.sort(key=lambda v: -v)
        copied.reverse()
        return (
            x * len(items),
            items,
            copied,
            items.index(7),
            items.count(0),
            sorted(items, reverse=True)[:2],
            (1, 2) * 2,
        )

    return _calls(f)


def copies() -> Case:
    base = {"a": [1, 2], "t": torch.ones(2)}

    def f(x):
        shallow, deep = copy.copy(base["a"]), copy.deepcopy(base["a"])
        shallow.append(3)
        deep.append(4)
        return x * len(shallow), shallow, deep, base["a"]

    return _calls(f)


class Cached:
    def __init__(self, n):
        self.n = n
        self.computed = 0

    @cached_property
    def value(self):
        self.computed += 1
        return self.n * 10

    @property
    def counted(self):
        self.computed += 1
        return self.computed

    @counted.setter
    def counted(self, value):
        self.n = value


def properties() -> Case:
    thing = Cached(2)

    def f(x):
        y = x * thing.value + thing.value
        thing.counted = thing.n + 1
        return y, thing.counted, thing.counted

    return _calls(f, watch=[thing])


def globals_made_and_deleted() -> Case:
    namespace = globals()

    def f(x):
        global fresh_global
        fresh_global = x.shape[0]
        y = x * fresh_global
        del fresh_global
        return y, "fresh_global" in namespace

    return _calls(f)


def stop_iteration_inside_a_generator() -> Case:
    def gen():
        yield 1
        raise StopIteration("early")

    def f(x):
        try:
            list(gen())
        except RuntimeError as error:
            return x * 2, str(error), type(error.__cause__).__name__, error.__cause__ is error.__context__
        return x

    return _calls(f)
