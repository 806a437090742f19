"""How C code takes the items of an iterable: what its code, and the class of what it iterates over, can see of it.

========================================  ==========================================================================
one by one (`each`)                       `deque.extend`, `extendleft`; `set.update`, `difference_update` of what is no
                                          set; `dict.update`, `fromkeys`; `set()`; `min`, `max`, `sum`
one by one, until the answer is known     `any`, `all`, `in`, `isdisjoint`, `issuperset` of what is no set; unpacking
as a list grows (`listed`)                `list()`, `list.extend`, `+=`, `[*a]`, `f(*a)`, `tuple()`, `sorted`: the class
                                          of the iterable is asked for a length first
a list first (`as_sequence`)              slices that are assigned, `str.join`: its iterator is iterated over
all of it first (`unpack`)                `symmetric_difference`, `issubset`, `itertools.product` and its like
========================================  ==========================================================================
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from framesmith_dynamo.values.base import TracedRaise, Tracer, Value
from framesmith_dynamo.values.errors import answered
from framesmith_dynamo.values.iteration.iterators import drain, holding, next_or_none
from framesmith_dynamo.values.lookup import special_method, user_method


def each(tr: Tracer, iterable: Value) -> Iterator[Value]:
    """The items one by one, for C code that does something with each before it asks for the next one."""
    if iterable.python_type() is range:  # which has numbers alone, and may have too many
        yield from iterable.unpack(tr)
        return
    iterator = iterable.iter_(tr)
    with holding(tr, iterator):
        while (item := next_or_none(tr, iterator)) is not None:
            yield item


def listed(tr: Tracer, iterable: Value) -> list[Value]:
    """The items of `list(iterable)`."""
    if not _tells_length(iterable):
        return iterable.unpack(tr)
    iterator = iterable.iter_(tr)
    with holding(tr, iterator):
        ask_length(tr, iterable)
        return drain(tr, iterator)


def as_sequence(tr: Tracer, iterable: Value) -> list[Value]:
    """The items that C code takes by way of a list of what `iter(iterable)` gives; a list or tuple is one already."""
    if iterable.python_type() in (list, tuple):
        return iterable.unpack(tr)
    return listed(tr, iterable.iter_(tr))


def _tells_length(iterable: Value) -> bool:
    """Whether the class of an object has a method of the program's that C code asks how many items there will be."""
    return any(user_method(iterable.python_type(), name) is not None for name in ("__len__", "__length_hint__"))


def ask_length(tr: Tracer, iterable: Value) -> None:
    """Ask an object of a Python class how many items there will be, as C code does that makes room for them.

    A TypeError is no answer; other errors go on to the program.
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
    """Call `ask`; whether it did not raise the program's TypeError."""
    try:
        ask()
    except TracedRaise as raised:
        if not issubclass(raised.value.python_type(), TypeError):
            raise
        return False
    return True


def _is_refusal(answer: Value) -> bool:
    return answer.is_constant() and answer.as_constant() is NotImplemented
