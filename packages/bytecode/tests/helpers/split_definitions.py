# ruff: noqa: F401, F821 - what looks odd here is what the compiler must be fed
"""More of `PROGRAMS`: functions that define functions and classes, import, and read their locals."""

import sys

from split_programs import PROGRAMS, program
from splitting import Box, boom, say


def decorate(*arguments):
    def with_function(function):
        say("decorated", *arguments)
        return function

    return with_function


@program((0,), (3,))
def functions(n):
    @decorate(say(1), n)
    @decorate(say(2))
    def inner(a: say("int"), b=say(n), *args: say("rest"), c: int = say(4), d=n, **kw) -> say("result"):
        """doc"""
        return a, b, args, c, d, kw, n

    double = lambda x, y=say(n): (x + y, n)  # noqa: E731
    return inner(1), inner(1, 2, 3, c=5, e=6), double(2), inner.__annotations__, inner.__defaults__, inner.__doc__


@program((0,), (1,))
def classes(n):
    @decorate(say("class"))
    class Local(Box, *[say(object)][:0], metaclass=say(type)):
        x = say(n)
        y: int = x + 1

        def method(self, more=x):
            return super().method(more), __class__.__name__, self.x, n

        if n:
            z = [x for _ in range(2)]

    class Sub(Local):
        def method(self):
            return super().method(5)

    return Sub().method(), Local.__annotations__, getattr(Local, "z", None), Local.__qualname__


class Base:
    def __init__(self, *values):
        self.values = values

    def step(self, value, *more, key=None):
        return say(("base", value, more, key))

    @property
    def sized(self):
        return len(self.values)

    @classmethod
    def make(cls, *values):
        return cls(*values)


class Derived(Base):
    def supers(self, n):
        first = super().step(say(n), *[say(2)], key=super().sized)
        second = [super(Derived, self).step(i) for i in range(n)]
        if n:
            hold = lambda: (self, super(Derived, self).sized, __class__)  # noqa: E731
            first = hold()[1:], super().step(say(3))
        for self.values in [(1,), (2, 3)]:
            say(super().sized)
        return first, second, super().__init__(n), self.values

    @classmethod
    def makes(cls, n):
        made = super().make(say(n), n)
        return type(made) is cls, made.values, __class__.__name__


PROGRAMS["supers"] = (Derived.supers, [lambda: (Derived(1, 2), 0), lambda: (Derived(), 2)])
PROGRAMS["makes"] = (Derived.makes.__func__, [lambda: (Derived, 1)])


@program((0,), (1,), (2,))
def imports(n):
    import os.path
    import os.path as path
    from collections import OrderedDict
    from collections import abc as alphabet

    try:
        if n == 1:
            from os import no_such_name
        if n == 2:
            import json.no_such_module as inside
    except ImportError as e:
        return type(e), str(e).partition(" (")[0]
    return os.path is path, OrderedDict.__name__, alphabet.__name__


@program((0,), (1,))
def deep(n):
    return [
        (1, [2, {3: (4, [5, say(6), [say(7), (8, say(9), [i + n for i in (say(1), 2)], say(10, *[n], k=[say(1)]))]])}]),
        say(
            *[(yes, [no for no in range(yes)]) for yes in range(3)],
            last=(lambda *a, **k: (a, k))(say(1), *[2], z=say(3)),
        ),
    ]


@program((3,), (0,))
def with_globals(n):
    global COUNTER
    COUNTER = n
    for COUNTER in range(say(COUNTER)):
        COUNTER += 1
    say(COUNTER)
    del COUNTER
    try:
        COUNTER
    except NameError as e:
        return str(e)


@program((1, 2), (1, 2, 4, 5, 6))
def parameters(a, /, b, c=3, *args, d=4, **kw):
    kw["more"] = say(args)
    args += (a, b)
    for a in args:
        b, c = c, say(b)
    del d
    return a, b, c, args, kw


@program((1,), (2,))
def sees_locals(n):
    kept = n + 1
    if n == 2:
        extra = 3
    before = sorted(locals())
    kept = 0
    return before, kept, eval("kept + n"), sorted(vars())


@program((1,), (2,))
def sees_cells(n):
    unused, kept = n + 1, 2

    def inner():
        mine = kept
        say(lambda: (unused, mine))()
        if n == 2:
            del mine
        return sorted(locals())

    return inner(), sorted(locals())


NEWER = {
    "type_parameters": """
def type_parameters(n):
    def generic[T: say(int), *Ts, **P](a: T, b=say(n)) -> T:
        return a, b, T.__name__, generic.__type_params__
    class Holder[T](Box):
        def method(self, x: T = say(3)):
            return super().method(x), T.__name__, n
    type Pair[V] = tuple[V, V, n]
    type Plain = say(n)
    say(Pair.__type_params__[0].__name__)
    return len(generic(1)), Holder[int]().method(), Pair.__name__, Plain.__name__, Plain.__value__
""",
    "inlined": """
def inlined(n):
    x, y = "x", "y"
    get = lambda: (x, y)
    out = [[(x, y, [x for y in (x,)], (lambda: x)()) for y in range(2)] for x in range(n)]
    out += [x for x in [y for y in range(n)] if x if (lambda: x)()]
    try:
        {x: boom(KeyError, x) for x in [1] for y in [2]}
    except KeyError as e:
        out.append(e)
    for x in [z for z in range(n) if z]:
        out.append([x for x in range(x)])
    return out, get(), [y for y in say((lambda: y)())]
""",
}
if sys.version_info >= (3, 12):
    for name, text in NEWER.items():
        exec(compile(text, __file__, "exec"), globals())
        PROGRAMS[name] = (globals()[name], [lambda: (0,), lambda: (2,)])
