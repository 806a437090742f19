"""The protocols by which C code takes the items of an iterable, which the program's code can observe.

========================================  ==========================================================================
one by one (`each`)                       `deque.extend`, `extendleft`; `set.update`, `difference_update` of what is no
                                          set; `dict.update`, `fromkeys`; `set()`; `min`, `max`, `sum`
one by one, until the answer is known     `any`, `all`, `in`, `isdisjoint`, `issuperset` of what is no set; unpacking
as a list grows (`listed`)                `list()`, `list.extend`, `+=`, `[*a]`, `sorted`: the class of the iterable is
                                          asked for a length first
as a tuple grows (`tupled`)               `tuple()`, `f(*a)`: the class is asked on some versions
a list first (`as_sequence`)              slices that are assigned, `str.join`: its iterator is iterated over
all of it first (`unpack`)                `symmetric_difference`, `issubset`, `itertools.product` and its like
========================================  ==========================================================================
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from framesmith_dynamo.python_behaviour import TUPLE_ASKS_LENGTH
from framesmith_dynamo.values.base import TracedRaise, Tracer, Value
from framesmith_dynamo.values.errors import answered
from framesmith_dynamo.values.iteration.iterators import drain, holding, next_or_none
from framesmith_dynamo.values.lookup.entries import special_method
from framesmith_dynamo.values.lookup.static import user_method


def each(tr: Tracer, iterable: Value) -> Iterator[Value]:
    """Yield the items one by one, for C code that processes each before it takes the next one."""
    if iterable.python_type() is range:  # which holds numbers alone, and may have too many
        yield from iterable.unpack(tr)
        return
    iterator = iterable.iter_(tr)
    with holding(tr, iterator):
        while (item := next_or_none(tr, iterator)) is not None:
            yield item


def listed(tr: Tracer, iterable: Value) -> list[Value]:
    """Return the items of `list(iterable)`."""
    if not _has_length_method(iterable):
        return iterable.unpack(tr)
    iterator = iterable.iter_(tr)
    with holding(tr, iterator):
        ask_length(tr, iterable)
        return drain(tr, iterator)


def tupled(tr: Tracer, iterable: Value) -> list[Value]:
    """Return the items of `tuple(iterable)`."""
    return listed(tr, iterable) if TUPLE_ASKS_LENGTH else iterable.unpack(tr)


def as_sequence(tr: Tracer, iterable: Value) -> list[Value]:
    """Return the items that C code takes through a list of `iter(iterable)`; a list or tuple is used directly."""
    if iterable.python_type() in (list, tuple):
        return iterable.unpack(tr)
    return listed(tr, iterable.iter_(tr))


def _has_length_method(iterable: Value) -> bool:
    """Whether the class of an object defines a length method in Python that C code calls."""
    return any(user_method(iterable.python_type(), name) is not None for name in ("__len__", "__length_hint__"))


def ask_length(tr: Tracer, iterable: Value) -> None:
    """Call an object's length method, as C code does to reserve space.

    A TypeError is ignored; other errors propagate to the program.
    """
    if user_method(iterable.python_type(), "__len__") is not None and _answers(lambda: iterable.len_(tr)):
        return
    method = special_method(tr, iterable, "__length_hint__")
    if method is None:
        return
    answers: list[Value] = []
    if _answers(lambda: answers.append(tr.call(method, (iterable,), {}))) and not _is_refusal(answers[0]):
        answered(tr, operator.length_hint, "__length_hint__", iterable, answers[0])


def _answers(ask: Callable[[], object]) -> bool:
    """Call `ask`; return whether it did not raise the program's TypeError."""
    try:
        ask()
    except TracedRaise as raised:
        if not issubclass(raised.value.python_type(), TypeError):
            raise
        return False
    return True


def _is_refusal(answer: Value) -> bool:
    return answer.is_constant() and answer.as_constant() is NotImplemented
