"""Programs with `with` in all its forms: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# a Python manager [whole]
class Scaled:
    def __init__(self, n):
        self.n = n
        self.left = 0
    def __enter__(self):
        return self.n
    def __exit__(self, *what):
        self.left += 1

def fn(x):
    manager = Scaled(3)
    with manager as n:
        y = x * n
    return y + manager.left

# several managers [whole]
LOG = []
class Noted:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        LOG.append("enter " + self.name)
        return self.name
    def __exit__(self, kind, error, trace):
        LOG.append("exit " + self.name)

def fn(x):
    with Noted("a") as a, Noted("b") as b:
        y = x + len(a + b)
    return y, list(LOG)

# in parentheses, with a comma at the end [whole]
LOG = []
class Noted:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        LOG.append("enter " + self.name)
        return self
    def __exit__(self, *what):
        LOG.append("exit " + self.name)

def fn(x):
    with (
        Noted("a") as a,
        Noted(a.name + "b"),
        Noted("c") as c,
    ):
        y = x + len(c.name)
    return y, list(LOG)

# targets that are no names [whole]
class Pair:
    def __enter__(self):
        return 1, (2, 3)
    def __exit__(self, *what):
        pass

def fn(x):
    table = {}
    with Pair() as (a, (b, c)), Pair() as table["k"]:
        y = x * a + b + c
    return y, table

# suppressing [whole]
class Quiet:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        self.kind = kind
        self.text = str(error)
        return kind is not None and issubclass(kind, LookupError)

def fn(x):
    quiet = Quiet()
    y = x + 1
    with quiet:
        y = y * 2
        [][3]
        y = y * 100
    return y, quiet.kind, quiet.text

# not suppressing [whole]
class Seen:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        self.kind = kind
        return False

def fn(x):
    seen = Seen()
    try:
        with seen:
            {}["a"]
    except KeyError as error:
        return x + 1, seen.kind, error.args

# an exit that returns what is true [whole]
class Odd:
    def __enter__(self):
        pass
    def __exit__(self, *what):
        return [0]

def fn(x):
    with Odd():
        raise ValueError("lost")
    return x + 1

# raising in the exit [whole]
class Bad:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        raise RuntimeError("from exit")

def fn(x):
    try:
        with Bad():
            raise ValueError("inside")
    except RuntimeError as error:
        return x + 1, str(error), str(error.__context__), type(error.__context__).__name__

# raising in the exit without another exception [whole]
class Bad:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        raise RuntimeError("from exit")

def fn(x):
    y = x
    try:
        with Bad():
            y = y * 2
    except RuntimeError as error:
        return y + 1, str(error), error.__context__

# raising in the second enter [whole]
LOG = []
class First:
    def __enter__(self):
        return 1
    def __exit__(self, kind, error, trace):
        LOG.append(kind.__name__)

class Second:
    def __enter__(self):
        raise ValueError("enter")
    def __exit__(self, *what):
        LOG.append("never")

def fn(x):
    try:
        with First() as a, Second():
            pass
    except ValueError as error:
        return x + a, str(error), list(LOG)

# return, break and continue [whole]
LOG = []
class Noted:
    def __enter__(self):
        return self
    def __exit__(self, *what):
        LOG.append(what[0])

def inner(x):
    for i in range(5):
        with Noted():
            x = x + i
            if i == 1:
                continue
            if i == 3:
                break
    with Noted():
        return x * 2

def fn(x):
    return inner(x), len(LOG)

# the exit changes what is returned [whole]
class Holder:
    def __init__(self):
        self.items = []
    def __enter__(self):
        return self.items
    def __exit__(self, *what):
        self.items.append("left")

def inner():
    with Holder() as items:
        return items

def fn(x):
    found = inner()
    return x + len(found), found

# a generator's manager [whole]
import contextlib
LOG = []
@contextlib.contextmanager
def scaled(n):
    LOG.append("enter")
    try:
        yield n * 2
    finally:
        LOG.append("exit")

def fn(x):
    with scaled(3) as n, scaled(1):
        y = x * n
    return y, list(LOG)

# a generator's manager that suppresses [whole]
import contextlib
@contextlib.contextmanager
def quiet():
    try:
        yield
    except KeyError as error:
        LOG.append(error.args)

LOG = []
def fn(x):
    with quiet():
        {}["a"]
    return x + len(LOG), list(LOG)

# an exit stack [whole]
import contextlib
LOG = []
def fn(x):
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(contextlib.nullcontext(2))
        stack.callback(LOG.append, "called")
        y = x * a
    return y + len(LOG)

# suppress, nullcontext and closing [whole]
import contextlib
class Door:
    closed = False
    def close(self):
        self.closed = True

def fn(x):
    door = Door()
    with contextlib.suppress(KeyError, IndexError), contextlib.nullcontext(5) as n, contextlib.closing(door):
        y = x * n
        {}[1]
        y = y * 100
    return y, door.closed

# a decorator that is a manager [whole]
import contextlib
LOG = []
class Noted(contextlib.ContextDecorator):
    def __enter__(self):
        LOG.append("enter")
        return self
    def __exit__(self, *what):
        LOG.append("exit")
        return False

@Noted()
def double(x):
    return x * 2

def fn(x):
    return double(x), len(LOG)

# torch's managers together [whole]
def fn(x):
    w = torch.ones(4, requires_grad=True)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        y = x * w
    with torch.enable_grad():
        z = x * w
    return y.requires_grad, z.requires_grad, y + z.detach()

# an exit in a class's own attribute [whole]
class Odd:
    __exit__ = staticmethod(lambda *what: None)
    def __enter__(self):
        return 3

def fn(x):
    with Odd() as n:
        y = x * n
    return y

# an exit set on the instance [whole]
class Noted:
    def __enter__(self):
        self.__exit__ = None
        return 2
    def __exit__(self, *what):
        self.done = True

def fn(x):
    noted = Noted()
    with noted as n:
        y = x * n
    return y, noted.done

# no manager [whole]
def fn(x):
    out = []
    for what in (5, "text", None):
        try:
            with what:
                pass
        except TypeError as error:
            out.append(str(error))
        except AttributeError as error:
            out.append(str(error))
    return x + 1, out

# a half of a manager [whole]
class Half:
    def __enter__(self):
        return 1

def fn(x):
    try:
        with Half():
            pass
    except (TypeError, AttributeError) as error:
        return x + 1, type(error).__name__, str(error)

# deep nesting [whole]
class Add:
    def __init__(self, n):
        self.n = n
    def __enter__(self):
        return self.n
    def __exit__(self, *what):
        pass

def fn(x):
    with Add(1) as a:
        with Add(a + 1) as b:
            with Add(a + b) as c:
                with Add(b * c) as d:
                    return x + a + b + c + d

# finally inside and outside [whole]
LOG = []
class Noted:
    def __enter__(self):
        LOG.append("enter")
    def __exit__(self, *what):
        LOG.append("exit")

def inner(x):
    try:
        with Noted():
            try:
                return x + 1
            finally:
                LOG.append("inner")
    finally:
        LOG.append("outer")

def fn(x):
    return inner(x), list(LOG)

# asynchronous managers in all forms [coroutine-call, not-inlined]
import asyncio
LOG = []
class Noted:
    def __init__(self, n):
        self.n = n
    async def __aenter__(self):
        return self.n
    async def __aexit__(self, kind, error, trace):
        LOG.append(kind.__name__ if kind else None)
        return kind is KeyError

async def main(x):
    async with (Noted(2) as a, Noted(3) as b):
        y = x * a + b
    async with Noted(1):
        {}["a"]
    return y, list(LOG)

def fn(x):
    return asyncio.run(main(x))

# a break between managers [print]
class Noted:
    def __enter__(self):
        return 2
    def __exit__(self, *what):
        print("exit")

def fn(x):
    with Noted() as a:
        y = x * a
    z = y + 1
    return z

# a suppressed exception behind a break [print]
class Quiet:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        return True

def fn(x):
    y = x + 1
    with Quiet():
        print("inside")
        y = y * 2
        {}["a"]
    return y + 1
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
