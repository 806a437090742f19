"""Binding call arguments to a Python function's parameters, by the rules and with the errors of CPython."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import CodeType
from typing import TYPE_CHECKING

from framesmith_dynamo.values.containers import TupleValue, new_dict

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

Default = Callable[[], "Value"]


def bind(
    tr: Tracer, code: CodeType, name: str, args: Args, kwargs: Kwargs, defaults: Mapping[str, Default]
) -> dict[str, Value]:
    """Parameter name -> value, `*args` and `**kwargs` included; raises the program's TypeError when they do not fit.

    `defaults` gives the value of each parameter that has one, made only when it is needed.
    """
    positional = code.co_varnames[: code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    takes_args = bool(code.co_flags & inspect.CO_VARARGS)
    takes_kwargs = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and not takes_args:
        tr.raise_(TypeError, f"{name}() takes {len(positional)} positional arguments but {len(args)} were given")
    extra = _bind_keywords(tr, code, name, kwargs, bound, takes_kwargs)
    _fill_defaults(tr, name, (*positional, *keyword_only), bound, defaults)
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
            tr.raise_(TypeError, f"{name}() got an unexpected keyword argument '{key}'")
    return extra


def _fill_defaults(
    tr: Tracer, name: str, parameters: tuple[str, ...], bound: dict[str, Value], defaults: Mapping[str, Default]
) -> None:
    missing = []
    for parameter in parameters:
        if parameter not in bound:
            if parameter in defaults:
                bound[parameter] = defaults[parameter]()
            else:
                missing.append(parameter)
    if missing:
        listed = ", ".join(repr(parameter) for parameter in missing)
        tr.raise_(TypeError, f"{name}() missing {len(missing)} required arguments: {listed}")
