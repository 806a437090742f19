"""Reference cycles: exceptions among their own contexts, containers extended by themselves, objects."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(6.0).reshape(2, 3)


# Exceptions


def context_of_itself(x):
    try:
        try:
            raise ValueError(1)
        except ValueError as error:
            error.__context__ = error
            raise TypeError(2)
    except TypeError as error:
        return x + 1, type(error.__context__).__name__


def circle_of_two(x):
    a, b = ValueError(1), KeyError(2)
    a.__context__, b.__context__ = b, a
    try:
        try:
            raise a
        except ValueError:
            raise TypeError(3)
    except TypeError as error:
        return x + 1, error.__context__ is a, a.__context__ is b, b.__context__ is a


def circle_behind_others(x):
    a, b, c = ValueError(1), KeyError(2), IndexError(3)
    a.__context__, b.__context__, c.__context__ = b, c, b
    try:
        try:
            raise a
        except ValueError:
            raise TypeError(3)
    except TypeError as error:
        return x + 1, error.__context__ is a, c.__context__ is b


def raised_again_inside(x):
    """CPython makes no cycle of its own: it drops the context that would close it."""
    a = ValueError(1)
    try:
        try:
            raise a
        except ValueError:
            try:
                raise KeyError(2)
            except KeyError:
                raise a
    except ValueError as error:
        return x + 1, type(error.__context__).__name__, error.__context__.__context__ is None


def causes_in_a_circle(x):
    a, b = ValueError(1), KeyError(2)
    b.__cause__ = a
    try:
        raise a from b
    except ValueError as error:
        return x + 1, error.__cause__ is b, b.__cause__ is a, error.__context__ is None


def raised_from_itself(x):
    a = ValueError(1)
    try:
        raise a from a
    except ValueError as error:
        return x + 1, error.__cause__ is error


def through_a_finally(x):
    a = ValueError(1)
    a.__context__ = a
    try:
        try:
            raise a
        finally:
            raise KeyError(1)
    except KeyError as error:
        return x + 1, error.__context__ is a


def through_a_context_manager(x):
    @contextlib.contextmanager
    def manager():
        try:
            yield
        except ValueError as error:
            error.__context__ = error
            raise TypeError(1)

    try:
        with manager():
            raise ValueError(2)
    except TypeError as error:
        return x + 1, type(error.__context__).__name__


def through_an_exit_stack(x):
    def fails(*_):
        error = KeyError(1)
        error.__context__ = error
        raise error

    try:
        with contextlib.ExitStack() as stack:
            stack.push(fails)
            stack.push(fails)
            raise ValueError(2)
    except Exception as error:
        return x + 1, type(error).__name__


def into_a_generator(x):
    def generator():
        try:
            yield 1
        except ValueError as error:
            error.__context__ = error
            raise TypeError(3)

    running = generator()
    next(running)
    try:
        running.throw(ValueError(1))
    except TypeError as error:
        return x + len(error.args)


def circle_returned(x):
    a, b = ValueError(1), KeyError(2)
    a.__context__, b.__context__ = b, a
    return x + 1, [a, b]


def circle_raised(x):
    a, b = ValueError(1), KeyError(2)
    a.__context__, b.__context__ = b, a
    x = x + 1
    raise a


def among_its_own_arguments(x):
    error = ValueError()
    error.args = (error,)
    return x + 1, error.args[0] is error


def among_its_own_arguments_and_returned(x):
    error = ValueError()
    error.args = (error,)
    return x + 1, error


EXCEPTIONS = [
    context_of_itself, circle_of_two, circle_behind_others, raised_again_inside, causes_in_a_circle,
    raised_from_itself, through_a_finally, through_a_context_manager, through_an_exit_stack, into_a_generator,
    circle_returned, circle_raised, among_its_own_arguments,
]  # fmt: skip


@pytest.mark.parametrize("fn", EXCEPTIONS, ids=lambda fn: fn.__name__)
def test_exceptions_in_a_circle(fn):
    check(fn, X)


def test_an_exception_made_before_the_call_may_be_in_a_circle():
    a, b = ValueError(1), KeyError(2)
    a.__context__, b.__context__ = b, a

    def reraises(x, error):
        try:
            try:
                raise error
            except ValueError:
                raise TypeError(2)
        except TypeError as other:
            return x + 1, other.__context__ is error

    result, same = compiled(reraises)(X, a)
    assert torch.equal(result, X + 1) and same
    assert a.__context__ is b and b.__context__ is a


def test_what_cannot_be_made_empty_first_breaks_the_graph():
    subject = compiled(among_its_own_arguments_and_returned)
    result, error = subject(X)
    assert torch.equal(result, X + 1) and error.args == (error,)
    assert "in a cycle" in subject.of_kind("break")[0].detail


# Containers


class OwnList(list):
    pass


class Other(list):
    def __iter__(self):
        return iter([9, 9])


class OwnDeque(collections.deque):
    pass


class Growing(list):
    def __iter__(self):
        i = 0
        while i < len(self):
            yield 2 * self[i]
            i += 1


class OtherDeque(collections.deque):
    def __iter__(self):
        return iter([9, 9])


class OwnDict(dict):
    pass


class OwnSet(set):
    pass


def extended(x, a):
    a.extend(a)
    a += a
    return x + len(a)


def extended_by_name(x, a):
    type(a).__mro__[-2].extend(a, a)
    return x + len(a)


def sliced(x, a):
    a[:] = a
    a[1:1] = a
    a[len(a) :] = a
    a *= 2
    return x + len(a)


def sliced_by_steps(x, a):
    a[::-1] = a
    return x + len(a)


def made_again(x, a):
    a.__init__(a)
    return x + len(a)


def extended_on_the_left(x, a):
    a.extendleft(a)
    a.extend(a)
    a *= 2
    return x + len(a)


def updated(x, a):
    a.update(a)
    a |= a
    return x + len(a)


def updated_away(x, a):
    a &= a
    a -= a
    a ^= a
    return x + len(a)


def of_its_own_iterator(x, a):
    try:
        a.extend(iter(a))
    except RuntimeError as error:
        return x + 1, str(error)


def of_its_own_items(x, a):
    try:
        a.update((key + "x", value) for key, value in a.items())
    except RuntimeError as error:
        return x + 1, str(error)


def grown_while_read(x, a):
    for item in a:
        if len(a) < 40:
            a.append(item + 1)
    return x + sum(a)


CONTAINERS = [
    (extended, [1, 2]), (extended, OwnList([1, 2])), (extended, Other([1, 2])), (extended, collections.deque([1, 2])),
    (extended, OwnDeque([1, 2])), (extended, OtherDeque([1, 2])), (extended, collections.deque([1, 2], 3)),
    (extended_by_name, OwnList([1, 2])), (extended_by_name, OwnDeque([1, 2])),
    (extended, Growing([1, 2])),
    (sliced, [1, 2]), (sliced, OwnList([1, 2])), (sliced, Other([1, 2, 3])), (sliced, Growing([1, 2])),
    (sliced_by_steps, [1, 2]), (sliced_by_steps, Other([1, 2, 3])), (sliced_by_steps, Growing([1, 2])),
    (made_again, OwnList([1, 2])), (made_again, Other([1, 2, 3])), (made_again, Growing([1, 2])),
    (extended_on_the_left, collections.deque([1, 2], 7)), (extended_on_the_left, OwnDeque([1, 2])),
    (updated, {"a": 1}), (updated, OwnDict(a=1)), (updated, collections.OrderedDict(a=1, b=2)),
    (updated, collections.Counter("aab")), (updated, {1, 2}), (updated, OwnSet({1, 2})),
    (updated_away, {1, 2}),
    (of_its_own_iterator, collections.deque([1, 2])), (of_its_own_items, {"a": 1, "b": 2}),
    (grown_while_read, [1]), (grown_while_read, OwnList([1])),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("fn", "container"), CONTAINERS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_a_container_changed_by_itself(fn, container):
    check(fn, X, container)


def test_a_new_container_extended_by_itself():
    def fn(x):
        a = OwnList([1, 2])
        a.extend(a)
        list.extend(a, a)
        return x + len(a), a

    check(fn, X)


# Objects


@dataclasses.dataclass
class Node:
    value: int
    next: Any = None


def list_in_itself(x):
    a: list[Any] = [1]
    a.append(a)
    return x + len(a), a, a[1] is a, a == a


def dict_in_itself(x):
    a: dict[str, Any] = {}
    a["a"] = a
    return x + len(a["a"]["a"]), a


def tuple_through_a_list(x):
    a: list[Any] = []
    pair = (a, x + 1)
    a.append(pair)
    return pair


def shown(x):
    a: list[Any] = [1]
    a.append(a)
    b: dict[Any, Any] = {1: 2}
    b["s"] = b
    node = Node(1)
    node.next = node
    return x + 1, repr(a), f"{b}", repr(node)


def compared(x):
    a, b = Node(1), Node(1)
    a.next, b.next = a, b
    try:
        return x + 1, a == b
    except RecursionError:
        return x + 2, "too deep"


def copied(x):
    a: list[Any] = [1]
    a.append(a)
    b = copy.deepcopy(a)
    return x + len(b), b[1] is b


def walked(x):
    a, b = Node(1), Node(2)
    a.next, b.next = b, a
    at = a
    for _ in range(7):
        at = at.next
    return x + at.value, a


def hashed(x):
    a: list[Any] = []
    pair = (a,)
    a.append(pair)
    try:
        hash(pair)
    except TypeError as error:
        return x + 1, str(error)


OBJECTS = [list_in_itself, dict_in_itself, tuple_through_a_list, shown, compared, copied, walked, hashed]


@pytest.mark.parametrize("fn", OBJECTS, ids=lambda fn: fn.__name__)
def test_objects_in_a_circle(fn):
    check(fn, X)
