"""Random functions, cut at every place: prefix and continuation do what the function does, in the same order."""

from __future__ import annotations

import random
import textwrap
from collections import Counter
from types import FunctionType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from framesmith_bytecode import Analyses, decode, split, verify, why_no_continuation
from framesmith_bytecode.analyses.slots import CELL

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
    """Its death is an effect."""

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
    """Everything one can observe of running the function."""
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


def lived_on(effects):
    """Did something outlive the run, in a cycle of an exception that is kept and its frame?"""
    return sum(effect[0] == "born" for effect in effects) != sum(effect[0] == "died" for effect in effects)


def last_deaths_sorted(effects):
    """An argument that is a cell dies with the prefix's frame, behind other locals."""
    end = len(effects)
    while end and effects[end - 1][0] == "died":
        end -= 1
    return effects[:end] + sorted(effects[end:])


def keeps_a_cell(known, index):
    """Is a comprehension under way that has a cell for its variable? Both halves keep that cell."""
    return any(kind & CELL for kind in known.depths.kinds(index))


def agree(found, expected, *, deaths=True):
    """All that can be observed is the same; deaths, unless they are left to the garbage collector."""
    for one, other in zip(found, expected, strict=True):
        effects = [run[1] for run in (one, other)]
        if not deaths or lived_on(other[1]):
            effects = [[effect for effect in run if effect[0] != "died"] for run in effects]
        effects = list(map(last_deaths_sorted, effects))
        if effects[0] != effects[1] or one[::2] != other[::2]:
            return False
    return True


def compiled(source: str) -> FunctionType:
    import warnings

    namespace = {"log": log, "boom": boom, "items": items, "mapping": mapping, "number": number}
    namespace |= {"Manager": Manager, "Mortal": Mortal}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "<random>", "exec"), namespace)
    return namespace["target"]


REFUSED: Counter[str] = Counter()
AGAIN: Counter[str] = Counter()


def split_again(prefix, code, chance):
    """The prefix with its continuation cut in two as well; and does that keep a cell?"""
    known = Analyses(decode(code))
    index = chance.choice([index for index, depth in enumerate(known.depths.before) if depth is not None])
    reason = why_no_continuation(known, index, own_cells=True)
    AGAIN[reason or "cut"] += 1
    if reason is not None:
        return prefix, False
    second = split(known, index).prefix
    whole = prefix.replace(co_consts=tuple(second if item is code else item for item in prefix.co_consts))
    return whole, keeps_a_cell(known, index)


def check_splits(source: str, chance: random.Random, most: int) -> int:
    function = compiled(source)
    bytecode = decode(function.__code__)
    known = Analyses(bytecode)
    expected = outcome(function)
    reached = known.depths.before
    places = [index for index, depth in enumerate(reached) if depth is not None]
    done = 0
    for index in chance.sample(places, min(most, len(places))):
        reason = why_no_continuation(known, index, own_cells=True)
        if reason is not None:
            REFUSED[reason] += 1
            continue
        done += 1
        prefix, continuation = split(known, index)
        keeps = again_keeps = keeps_a_cell(known, index)
        if done % 8 == 0:
            verify(decode(prefix))
            verify(continuation.bytecode)
            prefix, again_keeps = split_again(prefix, continuation.code, chance)
        halved = FunctionType(prefix, function.__globals__, "target", function.__defaults__)
        halved.__kwdefaults__ = function.__kwdefaults__
        same = agree(outcome(halved), expected, deaths=not (keeps or again_keeps))
        assert same, f"differs when cut at {index} {bytecode.instructions[index]}:\n{source}"
    return done


def test_random_functions_cut_anywhere(long_run):
    total = 0
    wanted = 100_000 if long_run else 3_000
    seed = 0
    while total < wanted:
        chance = random.Random(seed)
        total += check_splits(Writer(chance).function(), chance, 40)
        seed += 1
    print(f"{total:,} splits of {seed:,} functions, places refused: {dict(REFUSED)}")
    print(f"of these {AGAIN.total():,} cut in three: {dict(AGAIN)}")
    assert not REFUSED
    assert AGAIN["cut"] > 0.9 * AGAIN.total()


@settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
)
@given(st.randoms(use_true_random=False))
def test_hypothesis_functions_cut_anywhere(chance):
    check_splits(Writer(chance).function(), random.Random(0), 12)


@pytest.mark.parametrize("seed", range(3))
def test_the_programs_are_worth_it(seed):
    """Random programs must run a while: most have effects, and not all end the same way."""
    outcomes = [outcome(compiled(Writer(random.Random(1000 * seed + i)).function())) for i in range(60)]
    assert sum(any(effects for _, effects, _ in runs) for runs in outcomes) > 40
    assert {runs[0][0][0] for runs in outcomes} == {"returned", "raised"}
