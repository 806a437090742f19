"""Functions changed between calls: defaults, cells, attributes, code, partials, methods and what wraps them."""

import functools
import operator
import types

import torch
import torch.nn.functional as F

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, deleting, dropping, setting, storing

family = Family()


def helper(x, by=2.0, *, shift=1.0):
    return x * by + shift


def counter():
    n = 0

    def up():
        nonlocal n
        n += 1

    def get():
        return n

    return up, get


@family.holder("two", "five", "tensor", "none")
def defaults() -> World:
    def f(x):
        return helper(x)

    values = (2.0,), (5.0,), (torch.arange(3.0),), None
    return World(f, [setting(helper, __defaults__=value) for value in values])


@family.holder("one", "seven", "grown", "none")
def keyword_defaults_replaced() -> World:
    def f(x):
        return helper(x)

    values = {"shift": 1.0}, {"shift": 7.0}, {"shift": 8.0, "other": 1}, None
    return World(f, [setting(helper, __kwdefaults__=value) for value in values])


@family.holder("one", "seven", "gone")
def keyword_defaults_changed_in_place() -> World:
    table = helper.__kwdefaults__

    def f(x):
        return helper(x), helper.__kwdefaults__.get("shift")

    return World(f, [storing(table, shift=1.0), storing(table, shift=7.0), dropping(table, "shift")])


@family.holder("empty", "filled")
def mutable_default() -> World:
    seen: list = []

    def remember(x, seen=seen):
        seen.append(len(seen))
        return x * len(seen)

    def f(x):
        return remember(x) + remember(x)

    return World(f, [seen.clear, lambda: seen.extend([7, 8])], watch=[seen])


@family.holder("two", "five")
def own_defaults() -> World:
    def f(x, by=2.0, *, shift=1.0):
        return x * by + shift

    def put(*values):
        f.__defaults__, f.__kwdefaults__["shift"] = values[:1], values[1]

    return World(f, [lambda: put(2.0, 1.0), lambda: put(5.0, 3.0)])


@family.holder("two", "five", "empty")
def cell_set_directly() -> World:
    value = 2.0

    def inner(x):
        return x * value

    def f(x):
        return inner(x)

    cell = inner.__closure__[0]

    def empty():
        del cell.cell_contents

    def put(new):
        cell.cell_contents = new

    return World(f, [lambda: put(2.0), lambda: put(5.0), empty])


@family.holder("two", "five", "function")
def cell_of_an_argument() -> World:
    value: object = 2.0

    def put(new):
        nonlocal value
        value = new

    def inner(x):
        return value(x) if callable(value) else x * value

    def f(x, g):
        return g(x), g.__closure__ is None

    return World(f, [lambda: put(2.0), lambda: put(5.0), lambda: put(torch.neg)], lambda: (torch.ones(2), inner))


def _counters(kind):
    (up, get), (_, other) = counter(), counter()
    return torch.zeros(1), up, {"shared": get, "separate": other}[kind]


@family.arguments(shared=lambda: _counters("shared"), separate=lambda: _counters("separate"))
def two_closures(x, up, get):
    up()
    up()
    return x + get()


def _three(kind):
    (up, get), (up2, get2), (_, get3) = counter(), counter(), counter()
    pairs = {
        "all": (up, get, up, get),
        "first": (up, get, up2, get3),
        "both": (up, get, up2, get2),
        "crossed": (up, get2, up2, get),
    }
    return torch.zeros(1), *pairs[kind]


@family.arguments(**{kind: functools.partial(_three, kind) for kind in ("all", "first", "both", "crossed")})
def four_closures(x, up, get, up2, get2):
    up()
    a = get() * 10 + get2()
    up2()
    return x + a, get(), get2()


@family.program
def closures_sharing_a_cell_held_by_globals() -> Case:
    holder = types.SimpleNamespace()

    def shared():
        holder.up, holder.get = counter()

    def separate():
        holder.up, holder.get = counter()[0], counter()[1]

    def f(x):
        holder.up()
        return x + holder.get()

    return Case(f, [(torch.zeros(1),)] * 6, before=[shared, separate, shared, shared, separate, lambda: None])


@family.program
def closures_made_by_one_function() -> Case:
    def make(value):
        log: list = []

        def apply(x):
            log.append(value)
            return x * value

        return apply, log

    two, five = make(2.0), make(5.0)

    def f(x, apply, log):
        y = apply(x)
        return y, len(log), log is two[1]

    pairs = [two, five, (two[0], five[1]), (five[0], two[1]), two]
    return Case(f, [(torch.ones(2), *pair) for pair in pairs])


@family.holder("two", "five", "gone")
def function_attribute() -> World:
    def f(x):
        helper.seen = getattr(helper, "scale", 0.0)
        return x * helper.scale, vars(helper).get("scale")

    return World(f, [setting(helper, scale=2.0), setting(helper, scale=5.0), deleting(helper, "scale")])


@family.holder("own", "another", "constant")
def code_replaced() -> World:
    def another(x, by=2.0, *, shift=1.0):
        return x - by - shift

    def constant(x, by=2.0, *, shift=1.0):
        return by

    def f(x):
        return helper(x)

    return World(f, [setting(helper, __code__=code) for code in (helper.__code__, another.__code__, constant.__code__)])


@family.holder("own", "another")
def own_code_replaced() -> World:
    def f(x):
        return x * 2

    def another(x):
        return x - 7

    return World(f, [setting(f, __code__=f.__code__), setting(f, __code__=another.__code__)])


@family.holder("own", "renamed")
def names_of_a_function() -> World:
    def f(x):
        return x + len(helper.__name__), helper.__qualname__, helper.__doc__, helper.__module__

    own = setting(helper, __name__="helper", __qualname__="helper", __doc__=None)
    return World(f, [own, setting(helper, __name__="h", __qualname__="q.h", __doc__="Says.")])


@family.holder("own", "changed", "replaced")
def annotations() -> World:
    def f(x):
        return x + len(helper.__annotations__), dict(helper.__annotations__)

    def changed():
        helper.__annotations__["x"] = int

    return World(
        f, [lambda: setattr(helper, "__annotations__", {}), changed, setting(helper, __annotations__={"a": 1, "b": 2})]
    )


@family.holder("absent", "set_", "another")
def wrapped_attribute() -> World:
    @functools.wraps(helper)
    def wrapper(*args, **kwargs):
        return helper(*args, **kwargs) * 2

    def f(x):
        inner = getattr(wrapper, "__wrapped__", None)
        return x if inner is None else inner(x), wrapper(x)

    states = [
        deleting(wrapper, "__wrapped__"),
        setting(wrapper, __wrapped__=helper),
        setting(wrapper, __wrapped__=torch.neg),
    ]
    return World(f, states)


@family.holder("two", "five", "positional")
def partial_replaced() -> World:
    holder = types.SimpleNamespace()

    def f(x):
        return holder.p(x), holder.p.args, holder.p.keywords, holder.p.func is helper

    partials = (
        functools.partial(helper, by=2.0),
        functools.partial(helper, by=5.0),
        functools.partial(torch.add, torch.ones(3)),
    )
    return World(f, [setting(holder, p=p) for p in partials])


@family.holder("two", "five", "shift_too", "empty")
def partial_keywords_changed() -> World:
    p = functools.partial(helper, by=2.0)

    def put(**keywords):
        p.keywords.clear()
        p.keywords.update(keywords)

    def f(x):
        return p(x), dict(p.keywords)

    return World(f, [lambda: put(by=2.0), lambda: put(by=5.0), lambda: put(by=5.0, shift=3.0), put], watch=[p])


@family.holder("two", "five")
def partial_keywords_changed_inside() -> World:
    p = functools.partial(helper, by=2.0)

    def f(x, q):
        q.keywords["by"] = q.keywords["by"] + 1
        y = q(x)
        q.keywords["shift"] = 10.0
        z = q(x)
        del q.keywords["shift"]
        return y, z, q.keywords

    states = [storing(p.keywords, by=2.0), storing(p.keywords, by=5.0)]
    return World(f, states, lambda: (torch.ones(2), p), watch=[p])


@family.holder("helper_", "neg", "more_arguments")
def partial_changed_by_setstate() -> World:
    p = functools.partial(helper)

    def f(x):
        return p(x)

    states = (
        (helper, (), {"by": 2.0}, {}),
        (torch.neg, (), {}, {}),
        (torch.add, (torch.ones(3),), {"alpha": 3}, {"tag": 1}),
    )
    return World(f, [lambda state=state: p.__setstate__(state) for state in states], watch=[p])


@family.holder("two", "five")
def partial_method_replaced() -> World:
    class C:
        def go(self, x, by):
            return x * by

        half = functools.partialmethod(go, by=2.0)

    def f(x, o):
        return o.half(x)

    states = [setting(C, half=functools.partialmethod(C.go, by=by)) for by in (2.0, 5.0)]
    return World(f, states, lambda: (torch.ones(2), C()))


@family.holder("first", "second", "function")
def bound_method_held() -> World:
    class C:
        def __init__(self, k):
            self.k = k

        def go(self, x):
            self.k += 1
            return x * self.k

    holder, first, second = types.SimpleNamespace(), C(2.0), C(5.0)

    def f(x):
        return holder.m(x), getattr(holder.m, "__self__", None) is first

    return World(
        f, [setting(holder, m=first.go), setting(holder, m=second.go), setting(holder, m=helper)], watch=[first, second]
    )


@family.holder("two", "five", "cleared")
def cached_function() -> World:
    value = 2.0

    @functools.lru_cache
    def cached(k):
        return k * value

    def put(new, clear=False):
        nonlocal value
        value = new
        if clear:
            cached.cache_clear()

    def f(x):
        return x * cached(3)

    return World(f, [lambda: put(2.0), lambda: put(5.0), lambda: put(7.0, clear=True)])


@family.program
def single_dispatch_registers() -> Case:
    @functools.singledispatch
    def scale(o):
        return 1.0

    @scale.register
    def _(o: int):
        return 2.0

    def f(x, o):
        return x * scale(o)

    steps = [lambda: None, lambda: None, lambda: None, lambda: scale.register(str, lambda o: 5.0), lambda: None]
    steps += [lambda: scale.register(int, lambda o: 7.0), lambda: None]
    return Case(f, [(torch.ones(2), o) for o in (1, "s", 1.5, "s", 1, 1, "s")], before=steps)


@family.holder("two", "five", "gone")
def callable_object() -> World:
    class C:
        def __call__(self, x):
            return x * self.by

    thing = C()

    def f(x, c):
        return c(x)

    states = [setting(thing, by=2.0), setting(thing, by=5.0), deleting(thing, "by")]
    return World(f, states, lambda: (torch.ones(2), thing))


class Activations(dict):
    """A table of classes and arguments that makes what is asked for, as model libraries have them."""

    def __getitem__(self, key):
        content = super().__getitem__(key)
        kind, kwargs = content if isinstance(content, tuple) else (content, {})
        return kind(**kwargs)


@family.holder("silu", "leaky", "leaky_more", "gone")
def activation_table() -> World:
    table = Activations(act=torch.nn.SiLU)

    def f(x):
        return table["act"](x - 2)

    states = [
        storing(table, act=torch.nn.SiLU),
        storing(table, act=(torch.nn.LeakyReLU, {"negative_slope": 0.5})),
        storing(table, act=(torch.nn.LeakyReLU, {"negative_slope": 3.0})),
        dropping(table, "act"),
    ]
    return World(f, states)


@family.holder("relu", "own", "lambda_", "text")
def registry_of_functions() -> World:
    registry: dict = {}

    def f(x):
        act = registry["act"]
        return getattr(torch, act)(x - 2) if isinstance(act, str) else act(x - 2)

    return World(f, [storing(registry, act=act) for act in (F.relu, helper, lambda x: x * 3, "sigmoid")])


@family.holder("item", "attribute", "method")
def operator_objects() -> World:
    holder = types.SimpleNamespace()

    def f(x):
        return holder.get(x)

    getters = operator.itemgetter(0), operator.attrgetter("shape"), operator.methodcaller("mul", 3)
    return World(f, [setting(holder, get=get) for get in getters])


@family.holder("two", "five")
def generator_function_with_a_cell() -> World:
    value = 2.0

    def rows(n):
        for k in range(n):
            yield k * value

    def put(new):
        nonlocal value
        value = new

    def f(x):
        return x + sum(rows(3)), list(rows(2))

    return World(f, [lambda: put(2.0), lambda: put(5.0)])


@family.holder("plain", "wrapped", "wrapped_twice")
def function_wrapped_in_place() -> World:
    holder = types.SimpleNamespace()
    log: list = []

    def wrapping(fn, by):
        @functools.wraps(fn)
        def wrapper(x):
            log.append(by)
            return fn(x) * by

        return wrapper

    once = wrapping(helper, 2.0)

    def f(x):
        return holder.h(x), holder.h.__name__

    states = [setting(holder, h=helper), setting(holder, h=once), setting(holder, h=wrapping(once, 5.0))]
    return World(f, states, watch=[log])


@family.holder("two", "five")
def static_state_of_a_decorator() -> World:
    def counted(fn):
        def wrapper(*args):
            wrapper.calls += 1
            return fn(*args) * wrapper.by

        wrapper.calls, wrapper.by = 0, 2.0
        return wrapper

    go = counted(torch.neg)

    def f(x):
        return go(x), go.calls

    return World(f, [setting(go, by=2.0), setting(go, by=5.0)])


@family.program
def functions_returned_hold_what_they_closed_over() -> Case:
    def f(x, k):
        def inner(y: int, z: float = 2.0, *, w: str = "w") -> float:
            """Says."""
            return y * k + z

        inner.tag = k
        return x * k, inner, inner(1), inner.__annotations__, inner.__kwdefaults__, inner.__doc__, inner.__name__

    return Case(f, [(torch.ones(2), 2), (torch.ones(2), 2), (torch.ones(2), 3)])
