# ruff: noqa: PIE800, PIE804, PLE1132, RUF021, F401 - what looks odd here is what the compiler must be fed
"""Functions with every kind of item at which a function can be split, and their arguments: `PROGRAMS`."""

import sys

from splitting import Box, Manager, Mortal, boom, say

PROGRAMS = {}


def program(*runs):
    """Register a function with the arguments of its runs; each run makes its own."""

    def register(function):
        PROGRAMS[function.__name__] = (function, [run if callable(run) else (lambda run=run: run) for run in runs])
        return function

    return register


# ---- lives ----


@program(lambda: (Mortal("a"), 1, Mortal("rest")))
def deaths(a, b, *rest, key=None):
    x, y = Mortal("x"), Mortal("y")
    b = Mortal("b")
    x = say(None)  # noqa: F841
    for item in [Mortal("first"), Mortal("second")]:
        last = item
        say(1)
    del y
    later = Mortal("later")
    try:
        inside = Mortal("inside")
        boom()
    except ValueError:
        a = inside = None  # noqa: F841
    say(2)
    return len([a, b, last, later, Mortal("result")])


# ---- loops and blocks ----


@program((0,), (3,), (7,))
def for_with_else(n):
    out = []
    for i, (j, *k) in enumerate([(q, q + 1, q + 2) for q in range(n)]):
        if i == 2:
            continue
        if j == 5:
            break
        out.append(say(i, j, k))
    else:
        out.append("else")
    return out, n


@program((0,), (4,))
def while_with_else(n):
    total = 0
    while n > (limit := say(0)):
        n -= 1
        if n == 1:
            continue
        for total in range(n):
            if total > 1:
                break
        else:
            total += 10
    else:
        total = -total
    return total, limit


@program(([],), ([KeyError],), ([None, ValueError],), ([None, None, OSError],))
def several_managers(kinds):
    kinds = [*kinds, None, None, None]
    with Manager("a", [KeyError]) as a, Manager("b", [ValueError], kinds[2]) as b, Box(x=1) as c:
        say(a, b, c)
        if kinds[0]:
            boom(kinds[0], 1)
        if kinds[1]:
            boom(kinds[1], 2)
        say("end")
    return say("after")


@program((None, None), (KeyError, None), (None, KeyError), (KeyError, ValueError))
def exit_raises(enter, leave):
    try:
        with Manager(1, on_exit=leave):
            with Manager(2, [TypeError], on_enter=enter):
                boom(TypeError, "inside")
        say("after")
    except (KeyError, ValueError) as error:
        say(error)
        raise RuntimeError(say("again")) from error
    finally:
        say("finally")


@program((0,), (1,), (2,), (3,))
def with_in_loop(n):
    for i in range(4):
        with Manager(i, [KeyError]) as v:
            if i == n == 1:
                break
            if i == n == 2:
                return say(v)
            if i < n:
                continue
            boom(KeyError, v)
        say("swallowed")
    return n


@program((None,), (ValueError,), (KeyError,), (OSError,))
def try_whole(kind):
    try:
        say("try")
        if kind:
            raise kind(say("x"))
    except ValueError as e:
        say(e)
    except (KeyError, TypeError) as e:
        e.args += (say("more"),)
        raise
    else:
        say("else")
    finally:
        say("finally")
    return say("end")


@program((0,), (1,), (2,), (3,), (4,))
def nested_finally(n):
    for i in range(3):
        try:
            try:
                if n == 0:
                    return say("returned")
                if n == 1 and i:
                    break
                if n == 2:
                    boom(ValueError, i)
            finally:
                say("inner", i)
                if n == 2 and i == 1:
                    continue
        except ValueError as e:
            say(e)
            if n == 2 and i == 2:
                return say("from handler")
        finally:
            say("outer", i)
            if n == 3:
                return "overrides"
            if n == 4 and i == 1:
                boom(KeyError, "in finally")
    return "end"


@program((0,), (1,), (2,))
def finally_swallows(n):
    while True:
        try:
            try:
                1 // n
            finally:
                if n == 0:
                    break
                boom(OSError, n)
        except OSError as e:
            try:
                raise KeyError("in handler") from None
            except KeyError as f:
                say(f, e)
            finally:
                del e
            if n == 2:
                try:
                    e
                except UnboundLocalError as g:
                    return g
            return "handled"
    return "broken"


@program((0,), (1,), (2,), (3,))
def contexts(n):
    try:
        boom(ValueError, "first")
    except ValueError as first:
        try:
            if n == 0:
                boom(KeyError, "second")
            if n == 1:
                raise KeyError("from") from first
            if n == 2:
                raise
            raise first.with_traceback(None) from OSError("other")
        finally:
            say("on the way")


@program((0,), (1,), (2,), (3,), (4,))
def groups(n):
    seen = []
    try:
        try:
            if n:
                errors = [ValueError(1), TypeError(2), KeyError(3), OSError(4)][:n]
                raise ExceptionGroup("g", [*errors, ExceptionGroup("h", errors)])
        except* ValueError as e:
            seen.append(say(e))
            if n == 2:
                raise RuntimeError(say("new"))
        except* (TypeError, KeyError):
            seen.append(say("two"))
            if n == 3:
                raise
        else:
            say("no group")
        finally:
            say("finally")
    except ExceptionGroup as e:
        return say(e), seen
    return seen


@program((0,), (1,))
def naked_in_groups(n):
    for i in range(2):
        try:
            if n:
                raise ValueError(i)
        except* ValueError as e:
            for inner in e.exceptions:
                say(inner)
        except* OSError:
            say("never")
    return n


# ---- variables ----


@program((0,), (1,), (2,))
def own_cells(n):
    x = n
    out = []
    for i in range(2):

        def get(y=i, *, z=x):
            return x, y, z, i

        out.append(get())
        x += 1
        if n == 1:
            del x
            x = [7]
        out.append(get())
    if n == 2:
        del x
        try:
            get()
        except NameError as e:
            out.append(type(e))
    return out, x


def maker(start):
    value = start

    def free_cells(step):
        nonlocal value
        before = value
        value = value + say(step)
        add = lambda k=value: (k, value, before)  # noqa: E731
        if value > 5:
            del value
            try:
                add()
            except NameError as e:
                say(type(e))
            value = 0
        return add(), before, value

    return free_cells


FREE_CELLS = maker(1)


def with_free_cell(step):
    dict(zip(FREE_CELLS.__code__.co_freevars, FREE_CELLS.__closure__, strict=True))["value"].cell_contents = 1
    return (step,)


PROGRAMS["free_cells"] = (FREE_CELLS, [lambda: with_free_cell(2), lambda: with_free_cell(9)])


@program((0,), (1,))
def late_cell(n):
    def get():
        return x

    try:
        get()
    except NameError as e:
        say(type(e))
    if n:
        x = 3
    try:
        say(x)
    except UnboundLocalError as e:
        return str(e)
    x += 1
    return get()


@program((0,), (1,), (2,))
def deletes(n):
    a = b = c = n
    del a, b
    if n:
        b = 2
    for _ in range(2):
        try:
            say(b)
            del b
        except UnboundLocalError as e:
            say(e)
    if n == 2:
        a = 1
    return c, a


@program((0,), (2,))
def comprehensions(n):
    x = "outer"
    k = 10
    lists = [[(i, j, k) for j in range(i) if say(j) or True] for i in range(n)]
    sets = {x for x in range(n)}
    maps = {x: [x for _ in range(2)] for x in range(n)}
    lazy = list(y + k for y in [*sets, *maps])
    shadowed = [(lambda: (x, k))() for x in range(n)]
    walrus = [last := i for i in range(n + 1)]
    return lists, sets, maps, lazy, shadowed, walrus, last, x


@program((0,), (1,), (2,))
def comprehension_raises(n):
    x = 5
    get = lambda: x  # noqa: E731
    try:
        out = [say(2 // (x - 1)) for x in [2, 3, n]]
    except ZeroDivisionError as e:
        out = say(e)
    return out, x, get()


# ---- pending values ----


@program((0,), (1,))
def pending_calls(n):
    box = Box()
    out = say(1, say(2), *[say(3), 4], a=say(5), **{"b": say(6)}, **dict(c=7))
    say(box.method(say(1), [say(2)], k=say(3)).method(*(1, say(2)), **{"q": n}), print.__name__.upper().center(9, "."))
    say(*[1, 2], say(3), *say((4, 5)), z=say(6))
    if n:
        say(**{"a": 1}, **{"a": say(2)})
    return max(say(1), min(say(2), *[say(3)], key=lambda v: -v), default=None) if n else out


@program((0,), (1,))
def pending_containers(n):
    a = [say(1), say(2), *[say(3)], *(say(4), 5), say(6)]
    b = {say(1), *[say(2)], *a}
    c = {say("a"): say(1), **{"b": say(2)}, "c": say(n), **dict(d=4)}
    d = (say(1), [say(2), (say(3), {say("k"): [say(4)]})], *a)
    e = {"x": say(1), "y": say(2), "z": say(3)}
    f = f"{say(1)!r:>{say(5)}} {say('s')!s} {say(2.5):.{say(1)}f} {say('ä')!a} {{}} {n=}"
    return a, b, c, d, e, f, a[say(0) : say(3)], a[say(0) : say(4) : say(2)], a[:: say(-1)], d[say(-1)]


@program((0,), (1,), (5,))
def comparisons(n):
    out = [say(0) < say(n) < say(3) != say(7), say(n) in say([0, 1]) is not say(None), not say(n), -say(n)]
    if say(0) <= say(n) <= say(2) and say("then") or say("") and say("never"):
        out.append(say("yes"))
    return out, (say("t") if n else say("f")), say(n) and say(0) or say("last"), ~n, +n, n is None, n not in out


@program((0,), (1,))
def augmented(n):
    box = Box(item=1, value=[1], other=None)
    box[say("k")] += say(2)
    box.value += [say(3)]
    box.value[say(0)] *= say(4)
    box.value[say(0) : say(1)] = [say(5), 6]
    box.value[:1] += [n]
    box.other = box.new = x = say("chain")
    (box.a, box[say(1)]), [x, *box.rest] = (1, 2), say([3, 4, 5])
    del box[say("gone")], box.new, box.value[0]
    box += say(1)
    if n:
        box.missing += say("not reached")
    return sorted(vars(box)), x, box.rest, box.value


@program(([1, 2, 3],), ([1],), ([],), (5,))
def unpacking(value):
    first, *middle, last = value
    (a, *b), c = [say([1, 2, 3]), say(4)]
    *start, end = value
    [x, (y, z), *_] = say([1, (2, 3)])
    return first, middle, last, a, b, c, start, end, x, y, z


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@program(
    (1,), (-3,), ("s",), ([1],), ([1, 2, 3, 4],), (["go", 7],), ({},), ({"k": 1, "l": [2], "m": 3},),
    (Point(0, 5),), (Point(1, [2, {"d": 3}]),), (None,), (2.5,), ((1, Point(2, 3)),),
)  # fmt: skip
def matching(value):
    match say(value):
        case 1 | 2 | "s" as small:
            return "small", small
        case int(n) if say(n) < 0:
            return "negative", n
        case None | True:
            return "singleton"
        case ["go", (int() | str()) as where]:
            return where
        case [a, Point(x=b, y=c)]:
            return a, b, c
        case [only]:
            return only
        case [first, *rest, last]:
            return first, rest, last
        case {"k": k, "l": [m], **others}:
            return k, m, others
        case Point(0, y):
            return y
        case Point(x, [p, {"d": d}]):
            return x, p, d
        case dict():
            return "dict"
        case _:
            return "anything", value


@program((0,), (1,))
def asserting(n):
    assert say(n) or say("tested"), say("unused")
    assert n, f"message {say(n)}"
    while (m := say(n + 1)) < 3 and (k := m * 2):
        n += 1
        print(end=f"{k if say(k) else ''}"[:0])
    return m, k
