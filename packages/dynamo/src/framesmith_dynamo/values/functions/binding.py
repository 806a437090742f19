"""Binding of call arguments to a Python function's parameters, with the rules and errors of CPython."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING

from framesmith_dynamo.values.containers import TupleValue, new_dict

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

Default = Callable[[], "Value"]


def bind(
    tr: Tracer, code: CodeType, name: str, args: Args, kwargs: Kwargs, defaults: Mapping[str, Default]
) -> dict[str, Value]:
    """Return the value of each parameter, `*args` and `**kwargs` included; raises the program's TypeError.

    `defaults` creates the value of each parameter that has a default, on demand.
    """
    positional = code.co_varnames[: code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    takes_args = bool(code.co_flags & inspect.CO_VARARGS)
    takes_kwargs = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    extra = _bind_keywords(tr, code, name, kwargs, bound, takes_kwargs)
    if len(args) > len(positional) and not takes_args:
        optional = sum(parameter in defaults for parameter in positional)
        tr.raise_(
            TypeError, _too_many(name, len(positional), optional, len(args), sum(key in kwargs for key in keyword_only))
        )
    _fill_defaults(tr, name, positional, "positional", bound, defaults)
    _fill_defaults(tr, name, keyword_only, "keyword-only", bound, defaults)
    if takes_args:
        bound[code.co_varnames[rest]] = TupleValue(args[len(positional) :])
        rest += 1
    if takes_kwargs:
        bound[code.co_varnames[rest]] = new_dict(tr, [(tr.constant(key), value) for key, value in extra.items()])
    return bound


def _bind_keywords(
    tr: Tracer, code: CodeType, name: str, kwargs: Kwargs, bound: dict[str, Value], takes_kwargs: bool
) -> dict[str, Value]:
    by_keyword = set(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount])
    extra: dict[str, Value] = {}
    for key, value in kwargs.items():
        if key in by_keyword:
            if key in bound:
                tr.raise_(TypeError, f"{name}() got multiple values for argument '{key}'")
            bound[key] = value
        elif takes_kwargs:
            extra[key] = value
        else:
            named = [one for one in code.co_varnames[: code.co_posonlyargcount] if one in kwargs]
            what = "some positional-only arguments passed as keyword arguments" if named else "an unexpected keyword"
            which = f": '{', '.join(named)}'" if named else f" argument '{key}'"
            tr.raise_(TypeError, f"{name}() got {what}{which}")
    return extra


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _too_many(name: str, allowed: int, optional: int, given: int, by_keyword: int) -> str:
    """CPython's `too_many_positional` (ceval.c)."""
    takes = f"from {allowed - optional} to {allowed}" if optional else str(allowed)
    more = ""
    if by_keyword:
        more = f" positional argument{_plural(given)} (and {by_keyword} keyword-only argument{_plural(by_keyword)})"
    verb = "was" if given == 1 and not by_keyword else "were"
    plural = "s" if optional else _plural(allowed)
    return f"{name}() takes {takes} positional argument{plural} but {given}{more} {verb} given"


def _fill_defaults(
    tr: Tracer,
    name: str,
    parameters: Sequence[str],
    kind: str,
    bound: dict[str, Value],
    defaults: Mapping[str, Default],
) -> None:
    missing = []
    for parameter in parameters:
        if parameter not in bound:
            if parameter in defaults:
                bound[parameter] = defaults[parameter]()
            else:
                missing.append(parameter)
    if missing:
        tr.raise_(
            TypeError,
            f"{name}() missing {len(missing)} required {kind} argument{_plural(len(missing))}: {_listed(missing)}",
        )


def _listed(names: Sequence[str]) -> str:
    """Return names as CPython lists them: `'a'`, `'a' and 'b'`, `'a', 'b', and 'c'`."""
    quoted = [repr(name) for name in names]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return ", ".join(quoted[:-1]) + ", and " + quoted[-1]
