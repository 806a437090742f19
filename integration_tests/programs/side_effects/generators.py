"""Generators left half-run: each kind of generator, left in each of the ways in which a program leaves one."""

import contextlib
import functools
import itertools

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family

family = Family()


class Lock:
    """Writes down when it is entered and left, by what, and whether gradients are on then."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(("out", None if kind is None else kind.__name__, torch.is_grad_enabled()))


class Swallowing(Lock):
    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        return kind is not None and issubclass(kind, KeyError)


class Place:
    """An object in which a program stores a generator."""

    kept = None


# Kinds of generators, each of numbers


def in_a_lock(log, x):
    with Lock(log):
        yield 1
        yield 2
        yield 3


def in_no_grad(log, x):
    with torch.no_grad():
        y = x * 2
        log.append(y.requires_grad)
        yield 1
        log.append((x * 3).requires_grad)
        yield 2
    yield 3


def in_finally(log, x):
    try:
        yield 1
        yield 2
        yield 3
    finally:
        log.append(("finally", (x * 2).requires_grad))


def with_handlers(log, x):
    try:
        yield 1
        try:
            yield 2
        except KeyError as error:
            log.append(repr(error))
            yield 20
        yield 3
    except GeneratorExit:
        log.append("closing")
        raise
    except ValueError as error:
        log.append(repr(error))
        return 5
    else:
        log.append("all of it")


def delegating(log, x):
    with Lock(log):
        got = yield from in_finally(log, x)
        log.append(("got", got))
        yield 4


def delegating_to_a_list(log, x):
    try:
        yield from [1, 2, 3]
    finally:
        log.append("list over")


def returning_on_close(log, x):
    n = 0
    while True:
        n += 1
        try:
            yield n
        except GeneratorExit:
            log.append(("closed at", n))
            return
        if n == 3:
            return


def nested_blocks(log, x):
    with Lock(log) as outer, Swallowing(log):
        for n in range(1, 4):
            try:
                outer.log.append(("yield", n))
                yield n
            finally:
                log.append(("after", n))
    log.append("swallowed or over")
    yield 9


def an_expression(log, x):
    return (n * 1 for n in in_a_lock(log, x))


def a_pipeline(log, x):
    return (n for n in map(abs, filter(None, in_finally(log, x))))


@contextlib.contextmanager
def managed(log, x):
    log.append("enter")
    try:
        yield x * 2
    except KeyError as error:
        log.append(repr(error))
    finally:
        log.append("leave")


def in_a_managed_block(log, x):
    with managed(log, x) as y:
        log.append(y.shape[0])
        yield 1
        yield 2
    yield 3


class Stream:
    def __init__(self, log, x):
        self.log, self.x = log, x

    def __iter__(self):
        with Lock(self.log):
            yield 1
            yield 2
            yield 3


def of_an_object(log, x):
    return iter(Stream(log, x))


def without_blocks(log, x):
    yield 1
    log.append("between")
    yield 2
    yield 3


KINDS = (
    in_a_lock, in_no_grad, in_finally, with_handlers, delegating, delegating_to_a_list, returning_on_close,
    nested_blocks, an_expression, a_pipeline, in_a_managed_block, of_an_object, without_blocks,
)  # fmt: skip


# Ways of leaving one


def asked_once(kind, x, log, place):
    first = next(kind(log, x))
    log.append("dropped")
    return x * first


def rebound(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    g = None
    log.append("rebound")
    return y + 1, g


def deleted(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    del g
    log.append("deleted")
    return y * 2


def left_at_the_end(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    log.append("last")
    return y * next(g)


def broken_out_of(kind, x, log, place):
    for n in kind(log, x):
        log.append(n)
        if n == 2:
            break
    log.append("behind the loop")
    return x * n


def returned_out_of(kind, x, log, place):
    def look():
        for n in kind(log, x):
            if n == 2:
                return n
        return 0

    found = look()
    log.append("found")
    return x * found


def raised_out_of(kind, x, log, place):
    try:
        for n in kind(log, x):
            log.append(n)
            if n == 2:
                raise ValueError("out")
    except ValueError as error:
        log.append(str(error))
    log.append("behind it")
    return x * n


def raised_to_the_caller(kind, x, log, place):
    y = x * 2
    for n in kind(log, x):
        log.append(n)
        if n == 2:
            raise ValueError("out")
    return y


def raised_in_a_helper(kind, x, log, place):
    def helper():
        g = kind(log, x)
        log.append(next(g))
        raise ValueError("out")

    try:
        helper()
    except ValueError:
        log.append("in the handler")
    log.append("behind the handler")
    return x + 1


def given_back(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    return y, g


def kept_in_a_list(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    place["list"].append(g)
    return y


def kept_in_an_object(kind, x, log, place):
    place["object"].kept = kind(log, x)
    y = x * next(place["object"].kept)
    log.append("kept")
    place["object"].kept = None
    log.append("no more")
    return y


def kept_until_the_next_call(kind, x, log, place):
    if place["object"].kept is None:
        place["object"].kept = kind(log, x)
    return x * next(place["object"].kept, -1)


def in_a_new_list(kind, x, log, place):
    held = [kind(log, x)]
    y = x * next(held[0])
    held.clear()
    log.append("cleared")
    return y


def in_a_closure(kind, x, log, place):
    g = kind(log, x)

    def step():
        nonlocal g
        n = next(g)
        if n == 2:
            g = None
            log.append("let go")
        return n

    return x * (step() + step())


def closed(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    log.append(g.close())
    log.append(next(g, "over"))
    g.close()
    return y


def never_begun(kind, x, log, place):
    g = kind(log, x)
    g.close()
    h = kind(log, x)
    log.append("made")
    del h
    return x * len(list(g))


def thrown_into(kind, x, log, place):
    g = kind(log, x)
    next(g)
    try:
        log.append(next(g))
        log.append(g.throw(KeyError("thrown")))
    except KeyError as error:
        log.append(("came back", str(error), type(error.__context__).__name__))
    except StopIteration as stop:
        log.append(("stopped", stop.value))
    log.append(next(g, "over"))
    return x * 2


def thrown_a_value_error(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    try:
        g.throw(ValueError("thrown"))
    except ValueError as error:
        log.append(str(error))
    except StopIteration as stop:
        log.append(("stopped", stop.value))
    return y


def thrown_in_all_forms(kind, x, log, place):
    forms = (
        lambda g: g.throw(KeyError),
        lambda g: g.throw(KeyError, "a"),
        lambda g: g.throw(KeyError, KeyError("one")),
        lambda g: g.throw(KeyError, ("a", 2)),
        lambda g: g.throw(KeyError("one"), "a"),
        lambda g: g.throw(3),
        lambda g: g.throw(int, 4),
    )
    for throw in forms:
        g = kind(log, x)
        next(g)
        try:
            log.append(throw(g))
        except (KeyError, TypeError) as error:
            log.append((type(error).__name__, [*error.args]))
        except StopIteration as stop:
            log.append(("stopped", stop.value))
    return x + 1


def sent_to(kind, x, log, place):
    g = kind(log, x)
    log.append(g.send(None))
    try:
        log.append(g.send("value"))
    except AttributeError as error:
        log.append(str(error))
    return x + 1


def unpacked(kind, x, log, place):
    try:
        a, b = kind(log, x)
    except ValueError as error:
        log.append(str(error))
    a, b, *rest = kind(log, x)
    return x * a, b, rest


def used_up(kind, x, log, place):
    return x * sum(kind(log, x)), list(kind(log, x)), max(kind(log, x)), tuple(kind(log, x)), set(kind(log, x))


def sought_in(kind, x, log, place):
    seen = 2 in kind(log, x)
    log.append("sought")
    return x * 2, seen, any(n > 1 for n in kind(log, x)), all(n < 2 for n in kind(log, x))


def sliced(kind, x, log, place):
    some = list(itertools.islice(kind(log, x), 2))
    log.append("sliced")
    return x * some[0], some


def zipped(kind, x, log, place):
    pairs = list(zip(kind(log, x), [7, 8], strict=False))
    log.append("zipped")
    pairs += zip([7, 8], kind(log, x), strict=False)
    log.append("zipped again")
    return x * pairs[0][0], pairs


def zipped_with_each_other(kind, x, log, place):
    total = 0
    for a, b in zip(kind(log, x), kind(log, x), strict=True):
        total += a * b
        log.append(total)
    return x * total


def enumerated(kind, x, log, place):
    for i, n in enumerate(map(abs, kind(log, x))):
        log.append((i, n))
        if i == 1:
            break
    log.append("behind the loop")
    return x * n


def chained(kind, x, log, place):
    both = itertools.chain(kind(log, x), kind(log, x))
    some = [next(both) for _ in range(4)]
    log.append("four")
    del both
    log.append("gone")
    return x * some[-1], some


def with_a_default(kind, x, log, place):
    g = kind(log, x)
    got = [next(g, None) for _ in range(3)]
    log.append("three")
    return x * 2, got


def behind_a_break(kind, x, log, place):
    y = x * 2
    print("break")
    g = kind(log, x)
    y = y * next(g)
    del g
    log.append("dropped")
    return y + 1


def across_a_break(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    print("break")
    log.append("behind the break")
    y = y * next(g)
    del g
    log.append("dropped")
    return y + 1


def loop_with_a_break(kind, x, log, place):
    y = x * 2
    for n in kind(log, x):
        print(n)
        y = y * n
        if n == 2:
            break
    log.append("behind the loop")
    return y


def before_a_graph_that_fails(kind, x, log, place):
    g = kind(log, x)
    y = x * next(g)
    try:
        y = y[place["index"]]
    except IndexError:
        log.append("failed")
    del g
    log.append("dropped")
    return y * 2


def passed_to_a_helper(kind, x, log, place):
    def first(g):
        return next(g)

    y = x * first(kind(log, x))
    log.append("back")
    g = kind(log, x)
    y = y + first(g)
    log.append("still here")
    return y


def while_handling(kind, x, log, place):
    try:
        raise KeyError("k")
    except KeyError:
        y = x * next(kind(log, x))
        log.append("handled")
    return y


def under_no_grad(kind, x, log, place):
    with torch.no_grad():
        g = kind(log, x)
        y = x * next(g)
    log.append(torch.is_grad_enabled())
    del g
    log.append(torch.is_grad_enabled())
    return y * 2, (x * 2).requires_grad


def in_two_holders(kind, x, log, place):
    g = kind(log, x)
    h = g
    y = x * next(g)
    del g
    log.append("one is left")
    y = y + next(h)
    del h
    log.append("none is left")
    return y


WAYS = (
    asked_once, rebound, deleted, left_at_the_end, broken_out_of, returned_out_of, raised_out_of, raised_to_the_caller,
    raised_in_a_helper, given_back, kept_in_a_list, kept_in_an_object, kept_until_the_next_call, in_a_new_list,
    in_a_closure, closed, never_begun, thrown_into, thrown_a_value_error, thrown_in_all_forms, sent_to,
    unpacked, used_up, sought_in, sliced,
    zipped, zipped_with_each_other, enumerated, chained, with_a_default, behind_a_break, across_a_break,
    loop_with_a_break, before_a_graph_that_fails, passed_to_a_helper, while_handling, under_no_grad, in_two_holders,
)  # fmt: skip


def left(kind, way) -> Case:
    """One kind of generator, left in one way, three times."""
    log: list = []
    place = Place()
    kept: list = []

    def f(x, log, positions):
        return way(kind, x, log, positions)

    def close_all():
        for g in (*kept, place.kept):
            if g is not None:
                g.close()
        torch.set_grad_enabled(True)

    calls = [
        (torch.arange(1.0, 4.0, requires_grad=True), log, {"list": kept, "object": place, "index": torch.tensor([n])})
        for n in (0, 7, 1)
    ]
    return Case(f, calls, watch=[log], undo=close_all)


for _kind in KINDS:
    for _way in WAYS:
        family.programs[f"{_kind.__name__}__{_way.__name__}"] = functools.partial(left, _kind, _way)
