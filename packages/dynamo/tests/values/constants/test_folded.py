"""Patterns, typing objects and path strings: known while tracing."""

import os
import re
import typing

import pytest
import torch
from driver import check

X = torch.arange(3.0)
PATTERN = re.compile(r"(?P<name>\w+)=(\d+)")


def no_such_group(x):
    try:
        re.match("a", "a").group(3)
    except IndexError as error:
        return x + 1, str(error)


def a_wrong_pattern(x):
    try:
        re.compile("(")
    except re.error as error:
        return x + 1, str(error)


def a_branch(x):
    found = PATTERN.match("a=3")
    return x * int(found.group(2)) if found else x


def over_a_break(x):
    found = re.match("(a)", "a")
    x = x + 1
    print(end="")
    return x + len(found.group(1))


def typed(x):
    made = typing.List[int], typing.Dict[str, int], typing.Tuple[int, ...]  # noqa: UP006
    either = typing.Optional[int] == typing.Union[int, None]  # noqa: UP007, UP045
    function = typing.Callable[[int], str]
    return x + 1, [typing.get_origin(one) for one in made], typing.get_args(made[1]), either, typing.get_args(function)


WITHOUT_BREAKS = {
    "functions": lambda x: (x + len(re.sub("a", "bb", "aaa")), re.split(r",\s*", "a, b,c"), re.findall("a", "aba")),
    "a pattern": lambda x: (x + PATTERN.groups, PATTERN.pattern, PATTERN.findall("a=1 b=2"), PATTERN.match("?")),
    "a match": lambda x: (x + 1, PATTERN.match("a=3").groups(), PATTERN.match("a=3")["name"]),
    "spans": lambda x: (x + 1, PATTERN.search(" a=3").span(), PATTERN.search(" a=3").end(2)),
    "compiled": lambda x: (x + 1, re.compile("a+").fullmatch("aa").groupdict(), re.compile("a", re.I).flags),
    "no such group": no_such_group,
    "a wrong pattern": a_wrong_pattern,
    "a branch": a_branch,
    "typing": typed,
    "paths": lambda x: (x + 1, os.path.join("a", "b"), os.path.basename("a/c"), os.path.splitext("a.b")),
}  # fmt: skip
WITH_BREAKS = {
    "a function given": lambda x: (x + 1, re.sub("a", lambda found: found.group() * 2, "aba")),
    "over a break": over_a_break,
}


@pytest.mark.parametrize("name", [*WITHOUT_BREAKS, *WITH_BREAKS])
def test_as_in_eager_mode(name):
    fn = check({**WITHOUT_BREAKS, **WITH_BREAKS}[name], X)
    assert bool(fn.of_kind("break")) is (name in WITH_BREAKS)
