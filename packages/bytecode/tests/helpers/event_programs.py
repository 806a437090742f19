# ruff: noqa - what looks odd here is what the compiler must be fed
"""Programs whose events are compared: every `case_*` takes nothing. Compiled from its text, as it is and re-encoded."""

# fmt: off
log = []


def note(*values, **named):
    log.append((values, named))
    return values[0] if values else None


def caught(call, *args):
    try:
        return call(*args)
    except BaseException as error:
        return type(error).__name__, str(error)


class Manager:
    def __init__(self, swallows=(), fails=None):
        self.swallows, self.fails = swallows, fails

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.fails:
            raise self.fails("exit")
        return kind is not None and kind in self.swallows

    async def __aenter__(self):
        await Pause("enter")
        return self

    async def __aexit__(self, kind, error, traceback):
        await Pause("exit")
        return kind is not None and kind in self.swallows


class Pause:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return got


def drive(coroutine, *sent):
    seen = []
    try:
        seen.append(coroutine.send(None))
        for value in sent:
            if isinstance(value, BaseException):
                seen.append(coroutine.throw(value))
            else:
                seen.append(coroutine.send(value))
        while True:
            seen.append(coroutine.send(None))
    except BaseException as error:
        seen.append((type(error).__name__, getattr(error, "value", None)))
    return seen


def case_for_and_while():
    total = 0
    for i in range(6):
        if i == 1:
            continue
        for j in (
            1,
            2,
        ):
            if j > i:
                break
            total += j
        else:
            total -= 1
    else:
        total *= 2
    while total < 100:
        total += 17
        if total % 5 == 0:
            break
        if not total % 7: continue
    else:
        total = -total
    while True:
        total += 1
        if total % 10 == 3:
            return total


def case_one_line_loops():
    out = []
    for a in range(3): out.append(a)
    while out: out.pop()
    for a in (): pass
    for a in [1]: pass
    else: out = a
    while 0: out = 1
    return [out for out in range(2) for _ in range(2) if out], out


def case_loop_of_generator():
    def numbers(n):
        while n:
            yield n
            n -= 1
    out = []
    for a, b in zip(numbers(4), numbers(3)):
        for c in numbers(b):
            if c == 2:
                break
            out.append(a * b)
    return sum(numbers(3)), list(numbers(2)), out


def case_with():
    with Manager() as a, Manager((KeyError,)) as b, Manager(
        (ValueError,)
    ) as c:
        if a:
            raise KeyError(1)
    with (
        Manager((ValueError, OSError)) as a,
        Manager() as b,
    ):
        try:
            with Manager(fails=OSError):
                raise ValueError
        finally:
            note("finally")
    for i in range(3):
        with Manager():
            if i == 1:
                continue
            if i == 2:
                break
    with Manager():
        return (
            1,
            i,
        )


def case_with_that_raises():
    def inner(fails):
        with Manager(fails=fails):
            with Manager():
                1 / 0
    return caught(inner, None), caught(inner, KeyError)


def case_try():
    def inner(kind):
        try:
            try:
                if kind:
                    raise kind("x")
                note("body")
            except (KeyError, IndexError) as error:
                note(str(error))
            except ValueError:
                raise
            except TypeError as error:
                raise RuntimeError("again") from error
            else:
                note("else")
                return 1
            finally:
                note("finally")
        except RuntimeError:
            return 2
        finally:
            note("outer")
        return 3
    return [caught(inner, kind) for kind in (None, KeyError, ValueError, TypeError, OSError)]


def case_finally_paths():
    out = []
    for i in range(5):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(i)
        finally:
            try:
                out.append(-i)
                [][i]
            except IndexError:
                pass
            finally:
                out.append("f")
    def swallow():
        try:
            return 1
        finally:
            return 2
    def nested():
        try:
            try:
                int("x")
            finally:
                note(1)
        except ValueError as error:
            return [
                str(error)
                for _ in range(2)
            ]
    return out, swallow(), nested()


def case_groups():
    def inner(*errors):
        try:
            if errors:
                raise ExceptionGroup("g", errors)
        except* (KeyError, TypeError) as group:
            note(len(group.exceptions))
        except* ValueError as group:
            raise RuntimeError("new")
        else:
            return "else"
        finally:
            note("finally")
        return "end"
    return [
        caught(inner, *errors)
        for errors in ((), (KeyError(1),), (KeyError(), ValueError()), (OSError(), TypeError()), (OSError(),))
    ]


def case_comprehensions():
    base = 3
    rows = [[x * base for x in range(y)] for y in range(3)]
    table = {
        k: v
        for k, v in enumerate(rows)
        if v
    }
    unique = {a for row in rows for a in row}
    lazy = (a + base for a in unique)
    functions = [lambda: a + base for a in range(2)]
    try:
        bad = [1 // (x - 1) for x in range(3)]
    except ZeroDivisionError:
        bad = None
    return rows, table, sorted(unique), sorted(lazy), [f() for f in functions], bad, [y := 1, y ** 2]


def case_generators():
    def inner():
        try:
            got = yield 1
            while got:
                got = yield got * 2
        except KeyError as error:
            yield "key"
        finally:
            note("closed")
        return "done"

    def outer():
        result = yield from inner()
        yield result
        yield from (1, 2)
        yield from (x for x in "ab")

    out = [list(outer())]
    g = outer()
    out += [next(g), g.send(3), g.throw(KeyError("k")), next(g), g.close()]
    g = outer()
    out += [next(g), caught(g.throw, OSError("x"))]
    g = outer()
    next(g)
    g.close()
    def stops():
        raise StopIteration
        yield
    return out, caught(list, stops())


async def aitems(n):
    for i in range(n):
        try:
            got = yield i
            await Pause(i)
            if got:
                note(got)
        finally:
            note("item")


def case_coroutines():
    async def leaf(n):
        if n == 2:
            raise KeyError(n)
        return await Pause(n)

    async def main():
        total = []
        for n in range(4):
            try:
                total.append(await leaf(n))
            except KeyError:
                total.append("key")
            except OSError as error:
                total.append(
                    await leaf(7)
                )
        async with Manager((ValueError,)) as m, Manager():
            total.append(m is None)
            if total:
                raise ValueError
        async with Manager():
            return total

    return drive(main(), "a", "b", OSError("thrown"), "c"), drive(main(), ZeroDivisionError()), caught(drive, main(), 1)


def case_async_generators():
    async def main():
        out = []
        async for item in aitems(3):
            if item == 1:
                continue
            out.append(item)
        else:
            out.append("else")
        async for item in aitems(3):
            break
        out += [x + 1 async for x in aitems(2) if await Pause("test") is None]
        out.append({k: v async for k, v in pairs()})
        g = aitems(3)
        await g.__anext__()
        await g.asend("sent")
        try:
            await g.athrow(KeyError("t"))
        except KeyError:
            out.append("key")
        await g.aclose()
        return out, [x async for x in (y async for y in aitems(2))]

    async def pairs():
        yield 1, 2
        yield 3, 4

    return drive(main()), drive(main(), 1, 2, OSError())


def case_match():
    class P:
        __match_args__ = ("x", "y")
        def __init__(self, x, y): self.x, self.y = x, y
    def inner(value):
        match value:
            case [1, x, *rest] if x:
                return "list", x, rest
            case {"k": v, **others}:
                return "dict", v, others
            case P(0, y=y) | P(y, 0):
                return "point", y
            case (
                "a"
                | None
                | -1.5
            ) as w:
                return w
            case str() | bytes(): pass
            case _:
                return "other"
        return "end"
    return [
        inner(v)
        for v in ([1, 2, 3], [1, 0], {"k": 1, "l": 2}, P(0, 3), P(4, 0), P(1, 1), "a", None, -1.5, "b", b"", 7)
    ]


def case_classes():
    def decorate(*args):
        note(*args)
        return lambda thing: thing

    @decorate(
        1,
        2,
    )
    @decorate(3)
    class A:
        "doc"
        x: int = 1
        y = [x for x in range(2)]
        for z in range(2):
            if z: w = z

        @property
        def p(self):
            return self.x

        @classmethod
        def make(cls, *args, k=1):
            return cls()

        def __init_subclass__(cls, /, **named):
            super().__init_subclass__()
            cls.named = named

    class B(
        A,
        option=1,
    ):
        def method(self):
            return super().p + len(
                __class__.__name__
            )

        def __getattr__(self, name):
            if name == "missing":
                raise AttributeError(name)
            return name

    b = B.make(k=2)
    b.attr = b.other
    del b.attr
    return b.method(), B.named, getattr(b, "missing", 5), b.attr


def case_closures():
    count = 0
    def up(by=1, /, *more, scale=2, **named):
        nonlocal count
        def deeper():
            nonlocal by
            by += 1
            return count + by
        count += deeper() * scale
        return count
    up()
    up(2, 3, scale=1)
    def unbound():
        if count < 0:
            x = 1
        return x
    def deleted():
        x = 1
        del x
        return lambda: x
    return up(3, **{"a": 1}), caught(unbound), caught(deleted())


def case_calls():
    def f(*args, **named):
        return args, named
    args, named = (1, 2), {"z": 1}
    return (
        f(
            1,
            note(2),
            key=note(
                3
            ),
            other=f(4),
        ),
        f(*args, *args, a=1, **named),
        "a-b"
        .upper()
        .split(
            "-",
            maxsplit=note(1),
        ),
        max(
            [3, 1],
            key=lambda x:
                -x,
        ),
        caught(f, 1),
        caught(len, 1),
        caught(int, "x"),
        str.upper("x"), [].append(1), type(1), isinstance(1, int), dict(a=1), list(map(abs, (1, -1))),
        print(end=""),
    )


def case_expressions():
    a, b, c = 1, 2, None
    name = "n"
    out = [
        f"{a}{name!r:>{b}}{a:03d}" f"{name!s:5}",
        a < b < 3,
        3 < a < b,
        a
        < b
        < 0,
        a and b and c,
        a or b,
        (c or
         b),
        a if b else c,
        a if c is not None else (
            b),
        not a, a in (1, 2), a is not b,
        a + b * -a // 2 ** b,
    ]
    x, *y, (z, w) = 1, 2, 3, (4, 5)
    out[0:2] = out[1:3]
    out[0] = y[0:1]
    del out[0], out[-1:]
    out += [x]
    assert a, "message"
    def asserts(v): assert v, (
        "failed"
    )
    if (n := len(out)) > 3 and n < 100 or not n:
        out.append(n)
    return out, caught(asserts, 0), caught(lambda: a.b), caught(lambda: missing), caught(lambda: c[0])


def case_imports():
    import os.path as p
    from os import sep, pardir as q
    try:
        from os import nothing_of_this_name
    except ImportError:
        note("import")
    return p.sep == sep, q


def case_recursion():
    def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
    def deep(n):
        if not n:
            raise KeyError("bottom")
        try:
            return deep(n - 1)
        finally:
            note(n)
    return fib(6), caught(deep, 4)


def case_specialised():
    class Point:
        __slots__ = ("x",)
        def __init__(self, x): self.x = x
        def get(self): return self.x
        @property
        def twice(self): return self.x * 2
    total, text, table, items = 0, "", {}, []
    for i in range(40):
        p = Point(i)
        total += p.get() + p.twice
        text += "a"
        table[i] = total
        items.append(table[i] if i != 30 else 1.5)
        total = total - 1 if len(items) > 3 else int(items[0] < 5.0)
        a, b = i, p
        if text == "aaa" or i in table is False:
            continue
    for a, b in table.items():
        total += a
    return total, items, isinstance(a, int), [x for x in text if x]


def case_source_text_run():
    namespace = {}
    exec(compile("def f(x):\n  return [x\n    for _ in range(2)]\ny = f(1)", "<text>", "exec"), namespace)
    return namespace["y"], eval("1 + note(2)")
