"""Rules read the arguments of calls by position: a graph leaves out those that are their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from typing import Any

import pytest
import torch

import framesmith_backends.lower.graph  # noqa: F401 - registers all
from framesmith_backends.lower.registry import RULES, VIEWS

ALL = RULES | VIEWS
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def declared(name: str) -> list[Any]:
    _, packet, overload = name.split(".")
    found: list[Any] = getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments
    return found


def problems(rule: Callable[..., Any], arguments: list[Any]) -> Iterator[str]:
    parameters = [*inspect.signature(rule).parameters.values()][1:]  # behind the scope
    takes_all = {Parameter.VAR_POSITIONAL: False, Parameter.VAR_KEYWORD: False}
    takes_all.update((one.kind, True) for one in parameters if one.kind in takes_all)
    placed = iter([one for one in parameters if one.kind in BY_POSITION])
    named: Mapping[str, Parameter] = {one.name: one for one in parameters if one.kind is not Parameter.VAR_POSITIONAL}
    for argument in arguments:
        found = named.get(argument.name) if argument.kwarg_only else next(placed, None)
        if found is None:
            kind = Parameter.VAR_KEYWORD if argument.kwarg_only else Parameter.VAR_POSITIONAL
            if not takes_all[kind]:
                yield f"{argument.name} is not taken"
        elif argument.has_default_value():
            default = argument.default_value
            wanted = tuple(default) if isinstance(default, list) else default
            if found.default is Parameter.empty or found.default != wanted:
                yield f"{argument.name} is {default} unless given, for the rule {found.name} is {found.default}"


@pytest.mark.parametrize("name", ALL)
def test_a_rule_takes_what_the_schema_declares_with_the_same_defaults(name: str) -> None:
    assert not [*problems(ALL[name], declared(name))]


def test_a_missing_parameter_is_found() -> None:
    def rule(s: Any, x: Any, y: Any, reduction: int = 1) -> None: ...

    found = problems(rule, declared("aten.binary_cross_entropy_with_logits.default"))
    assert [one.split()[0] for one in found] == ["weight", "pos_weight", "reduction"]
