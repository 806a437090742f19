"""Real functions for mutation, and sources that only newer CPythons compile."""

from types import CodeType

from framesmith_bytecode.nested import walk_code

SOURCE = """
def loops(a, b, *rest, key=None, **more):
    total = []
    for x in rest:
        while key:
            key -= 1
            if x is None:
                continue
            total.append((x, key))
        else:
            total += [x]
    return total, more, a if b else key

def tries(a, b):
    try:
        c = a[b]
    except (KeyError, IndexError) as error:
        c = f"{error!r:>20}"
    except TypeError:
        raise ValueError("no") from None
    else:
        c += 1
    finally:
        b = None
    return c

def withs(a, b):
    with a as c, b:
        for d in c or ():
            if d:
                return d
        raise ValueError(c)
    return b

def groups(a):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        a.append(e)
    except* KeyError:
        raise
    return a

def closures(a, b):
    c = [lambda x, y=b: (a, x, y, c) for _ in range(2)]
    def inner(q, *, r: int = 3) -> str:
        nonlocal b
        b = q
        del c
        return a, r
    if b:
        del a
    return inner, {k: v for k, v in enumerate(c)}, {x for x in b}

def comprehended(a):
    x = 3
    f = lambda: x
    return [x for x in a if x], f, [[y for y in x] for x in a], [(lambda: z) for z in a], x

def generator(a, b):
    try:
        while a:
            a = yield a
            b += yield from a
    except GeneratorExit:
        yield 3
    finally:
        yield b
    return a

async def coroutine(a, b):
    async with a as c:
        await b
        async for d in c:
            await d
        return [x async for x in b if await x]

async def asynchronous(a):
    for b in a:
        yield b
        await b

def matches(a):
    match a:
        case {"k": v, **rest}:
            return v, rest
        case [x, *y, z] if x:
            return y
        case ValueError(args=w) | KeyError(w):
            return w
        case str() | None:
            return 1
    return a

def calls(a, b, f):
    global G
    G = f(*a, **b)
    f(1, *a, k=2, **b)
    a.x[b].y = a.n(b, k=a)[1:b]
    a, (b, *c) = a or b, f
    import os.path as p
    from os import path
    assert a, b
    del a[0], b.n
    return print(*c, sep=f"{a}{b!s}"), (w := a) and not b or -w, 1 < a <= b, {**b, "q": a}, [*a, 1], {*a}

class Body:
    n: int = 3
    def method(self):
        return super().method(), __class__
    locals()
    print = [n for n in (1, 2)]
"""
NEWER = """
def generic[T: int, *Ts, **P](a: T, b: Ts = 3, *, c=5) -> P:
    type Alias[Q] = list[T]
    class Inner[S](list):
        x: S = 3
    return Alias, Inner, a
"""


def stand_in(free: int) -> CodeType:
    """A harmless function's code with so many free variables."""
    names = [f"v{k}" for k in range(free)]
    binding = " = ".join([*names, "0"])
    source = f"def outer():\n    {binding}\n    return lambda *args: (args, {', '.join(names)})"
    return next(code for code in walk_code(compile(source, "fuzz", "exec")) if code.co_name == "<lambda>")


def trusts_its_caller(code: CodeType) -> bool:
    """Whether only the compiler calls this, with arguments of known kinds.

    A comprehension's function trusts that it is given an iterator. The verifier trusts it, too; a mutated caller need
    not keep that promise.
    """
    return any(name.startswith(".") for name in (*code.co_varnames, *code.co_freevars))


def functions() -> list[CodeType]:
    """Code objects of all functions, methods, comprehensions and class bodies above."""
    found = list(walk_code(compile(SOURCE, "fuzz", "exec")))
    try:
        found += walk_code(compile(NEWER, "fuzz", "exec"))
    except SyntaxError:
        pass
    return found
