"""Random functions as source text, and the observable outcome of running one."""

from __future__ import annotations

import random
import textwrap
from types import FunctionType

NAMES = ["v0", "v1", "v2", "a", "b"]


class Writer:
    """Writes one random function as source text."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.serial = 0
        self.in_loop = 0

    def pick(self, *options):
        return self.chance.choice(options)

    def tag(self) -> int:
        self.serial += 1
        return self.serial

    def name(self) -> str:
        return self.chance.choice(NAMES)

    def atom(self) -> str:
        number = str(self.chance.randrange(5))
        mortal = f"Mortal({self.tag()})"
        return self.pick(self.name(), self.name(), number, "None", "'s'", "[1, 2]", "(3, 4, 5)", mortal)

    def expression(self, depth: int = 2) -> str:
        if depth == 0:
            return self.atom()
        e = lambda: self.expression(depth - 1)  # noqa: E731

        def inside() -> str:
            """An expression for a comprehension, where := is not allowed everywhere."""
            return e().replace(":=", "==")

        return self.pick(
            self.atom,
            lambda: f"log({self.tag()}, {e()})",
            lambda: f"log({self.tag()}, {e()}, key={e()})",
            lambda: f"number({e()}) {self.pick('+', '-', '*', '%')} number({e()})",
            lambda: f"({e()} if {e()} else {e()})",
            lambda: f"({e()} {self.pick('and', 'or')} {e()})",
            lambda: f"({e()} {self.pick('==', 'is', 'is not', '!=')} {e()})",
            lambda: f"[{e()}, {e()}, *items({e()})]",
            lambda: f"{{'k': {e()}, **mapping({e()})}}",
            lambda: f"log(*items({e()}), **mapping({e()}))",
            lambda: f"box.method({e()}, other={e()})",
            lambda: f"box.attribute[{self.chance.randrange(3)}]",
            lambda: f"f'{{{self.name()}!r:>{{4}}}} {{{self.name()}}}'",
            lambda: f"[log({self.tag()}, i, {self.name()}) for i in items({inside()}) if i]",
            lambda: f"[(lambda: (i, {self.name()}))() for i in items({inside()})]",
            lambda: f"{{v2: {inside()} for v2 in items({inside()})}}",
            lambda: f"[log({self.tag()}, c0, {inside()}) for c0 in items({inside()})]",
            lambda: f"[(c1, (lambda: (c0, c1))()) for c1 in items({inside()}) if c1]",
            lambda: f"(lambda z={e()}: (z, {self.name()}))()",
            lambda: f"(v1 := {e()})",
            lambda: f"number({e()}) < number({e()}) < 3",
            lambda: f"(items({e()}) or [0])[{self.pick('0', '-1', ':1', '::2')}]",
        )()

    def block(self, depth: int, least: int = 1) -> list[str]:
        lines: list[str] = []
        for _ in range(self.chance.randint(least, 3)):
            lines += self.statement(depth)
        return lines

    def indented(self, depth: int) -> list[str]:
        return ["    " + line for line in self.block(depth)]

    def looped(self, depth: int) -> list[str]:
        self.in_loop += 1
        body = self.indented(depth)
        self.in_loop -= 1
        return body

    def statement(self, depth: int) -> list[str]:
        simple = [
            lambda: [f"{self.name()} = {self.expression()}"],
            lambda: [f"{self.name()} = {self.expression(3)}"],
            lambda: [f"{self.name()} = Mortal({self.tag()})"],
            lambda: [self.expression(3)],
            lambda: [f"number_a = {self.expression()}", "log(0, number_a)"],
            lambda: [f"v0, *v1 = items({self.expression()})"],
            lambda: [f"box.attribute[number({self.expression()}) % 3] = {self.expression()}"],
            lambda: [f"{self.name()} = 1 + number({self.expression(1)})"],
            lambda: [f"boom({self.tag()}, {self.expression()})"],
            lambda: ["pass"],
            lambda: [f"assert {self.expression()}, {self.expression()}"],
        ]
        rare = [
            lambda: [f"del {self.name()}"],
            lambda: [f"return {self.expression()}"],
            lambda: [f"raise {self.pick('ValueError', 'KeyError')}({self.atom()})"],
        ]
        if self.in_loop:
            rare += [lambda: ["break"], lambda: ["continue"]]
        if depth == 0 or self.chance.random() < 0.45:
            return self.chance.choice(rare if self.chance.random() < 0.12 else simple)()
        compound = [self.conditional, self.for_loop, self.while_loop, self.with_block, self.closure, self.match]
        return self.pick(*compound, self.try_block, self.try_block)(depth - 1)

    def conditional(self, depth: int) -> list[str]:
        lines = [f"if {self.expression()}:", *self.indented(depth)]
        return lines + (["else:", *self.indented(depth)] if self.chance.random() < 0.5 else [])

    def for_loop(self, depth: int) -> list[str]:
        lines = [f"for {self.name()} in items({self.expression()}):", *self.looped(depth)]
        return lines + (["else:", *self.indented(depth)] if self.chance.random() < 0.3 else [])

    def while_loop(self, depth: int) -> list[str]:
        return [f"while fuel() and {self.expression(1)}:", *self.looped(depth)]

    def with_block(self, depth: int) -> list[str]:
        swallow = self.pick("False", "True")
        return [f"with Manager({self.tag()}, {swallow}){self.pick('', ' as v0')}:", *self.indented(depth)]

    def try_block(self, depth: int) -> list[str]:
        kind = self.pick("except", "finally", "both", "else")
        lines = ["try:", *self.indented(depth)]
        if kind != "finally":
            lines += [f"except {self.pick('ValueError', '(KeyError, TypeError)')} as v2:", *self.indented(depth)]
            if self.chance.random() < 0.3:
                lines += ["except Exception:", *self.indented(depth)]
        if kind == "else":
            lines += ["else:", *self.indented(depth)]
        if kind in ("finally", "both"):
            lines += ["finally:", *self.indented(depth)]
        return lines

    def closure(self, depth: int) -> list[str]:
        cell = self.pick("c0", "c1")
        number = self.tag()
        body = [
            f"    nonlocal {cell}",
            f"    log({number}, {cell})",
            f"    {cell} = {self.atom()}",
            f"    return {cell}",
        ]
        uses = self.pick(
            [f"{cell} = inner{number}()"], [f"inner{number}()"], [f"del {cell}"], [f"log({number}, {cell})"]
        )
        return [f"def inner{number}():", *body, *uses]

    def match(self, depth: int) -> list[str]:
        return [
            f"match {self.expression()}:",
            "    case [v0, *_]:", *("    " + line for line in self.indented(depth)),
            "    case {'k': v1} | {'l': v1}:", *("    " + line for line in self.indented(depth)),
            "    case int(v2) if v2 > 1:", *("    " + line for line in self.indented(depth)),
        ]  # fmt: skip

    def function(self) -> str:
        body = textwrap.indent("\n".join(self.block(2, 2)), "    ")
        bound = [name for name in ("v0", "v1", "v2") if self.chance.random() < 0.85]
        first = "".join(f"    {name} = {self.chance.randrange(4)}\n" for name in bound)
        head = "def target(a, b=2, *rest, key=None):\n    c0 = a\n    c1 = b\n    (lambda: (c0, c1))\n"
        return f"{head}{first}{body}\n    return v0, a\n"


class Manager:
    def __init__(self, tag, swallow):
        self.tag, self.swallow = tag, swallow

    def __enter__(self):
        EFFECTS.append(("enter", self.tag))
        return self.tag

    def __exit__(self, kind, value, trace):
        EFFECTS.append(("exit", self.tag, kind))
        return self.swallow and kind is not RuntimeError


class Box:
    def __init__(self):
        self.attribute = [10, 20, 30]

    def method(self, value, other):
        EFFECTS.append(("method", shown(value), shown(other)))
        return value


EFFECTS: list[object] = []


class Mortal:
    """An object whose death is an effect."""

    def __init__(self, tag):
        self.tag = tag
        EFFECTS.append(("born", tag))

    def __repr__(self):
        return f"Mortal {self.tag}"

    def __del__(self):
        EFFECTS.append(("died", self.tag))


def shown(value, depth=0):
    if isinstance(value, (list, tuple)):
        return [shown(item, depth + 1) for item in value] if depth < 4 else "..."
    if isinstance(value, dict):
        return [(shown(k), shown(v, depth + 1)) for k, v in value.items()] if depth < 4 else "..."
    return (
        f"{type(value).__name__} {value}" if isinstance(value, (int, str, Exception, type(None))) else str(type(value))
    )


def log(tag=None, *values, **named):
    EFFECTS.append(("log", shown(tag), shown(values), shown(named)))
    return values[0] if values else tag


def boom(tag, value):
    EFFECTS.append(("boom", tag))
    if tag % 3 == 0:
        raise (ValueError, KeyError)[tag % 2](tag)


def items(value):
    return list(value)[:3] if isinstance(value, (list, tuple, dict)) else [1, None]


def mapping(value):
    return {"q": 1} if value else {}


def number(value):
    return value if isinstance(value, int) else 7


def outcome(function):
    """All observable effects of running the function."""
    results = []
    for arguments in ((1,), ([3, 0], 5, 6), (None, 0)):
        EFFECTS.clear()
        left = [6]

        def fuel(left=left):
            left[0] -= 1
            return left[0] >= 0

        function.__globals__.update(fuel=fuel, box=Box())
        try:
            result = ("returned", shown(function(*arguments)))
        except Exception as error:
            result = ("raised", type(error), str(error))
        results.append((result, list(EFFECTS), shown(function.__globals__["box"].attribute)))
    return results


def compiled(source: str) -> FunctionType:
    import warnings

    namespace = {"log": log, "boom": boom, "items": items, "mapping": mapping, "number": number}
    namespace |= {"Manager": Manager, "Mortal": Mortal}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "<random>", "exec"), namespace)
    return namespace["target"]
