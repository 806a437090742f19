"""Code objects prepared for interpretation: handlers, jump targets, exception regions. Cached per code."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from framesmith_bytecode import Analyses, Bytecode, Continuation, Instr, Label, Position, Region, decode
from framesmith_dynamo.interpreter.handler_registry import INSTRUCTION_HANDLERS, Handler, unknown_instruction

#: The start of a continuation: the instruction, the stack slots that are NULL, the variables that are bound.
Place = tuple[int, frozenset[int], frozenset[str]]
#: An instruction that broke, in the code or in that which it continues: its operation and its position.
BreakSite = tuple[str, Position | None]


@dataclass(frozen=True, slots=True)
class Protection:
    """The exception handler of an instruction: its target, the stack depth, and whether the offset is pushed."""

    target: int
    depth: int
    lasti: bool


@dataclass(slots=True, eq=False)
class DecodedCode:
    """A code object ready to run: `handlers[i]` runs `instrs[i]`, which is item `items[i]` of the bytecode.

    `targets` maps labels to instruction indices. `continuations` are those made of it, `analyses` the data for making
    them; `broken_at`, of a continuation, are the instructions that broke before it (see `continuations`). `arms`:
    those of branches (see `branch_arms`).
    """

    bytecode: Bytecode
    analyses: Analyses
    handlers: list[Handler]
    instrs: list[Instr]
    targets: dict[Label, int]
    protections: list[Protection | None]
    argument_names: list[str]
    items: list[int]
    continuations: dict[Place, Continuation] = field(default_factory=dict)
    arms: dict[int, Any] = field(default_factory=dict)
    broken_at: frozenset[BreakSite] = frozenset()

    def break_site(self, index: int) -> BreakSite:
        """Return the operation and the position of an instruction."""
        return self.instrs[index].op, self.instrs[index].position

    def continues(self, code: DecodedCode, broken: int) -> None:
        """Record that this is a continuation of `code`, behind a break at instruction `broken`."""
        self.broken_at = code.broken_at | {code.break_site(broken)}


def _find_targets(bytecode: Bytecode) -> tuple[list[Instr], list[int], dict[Label, int]]:
    instrs: list[Instr] = []
    items: list[int] = []
    targets: dict[Label, int] = {}
    for index, item in enumerate(bytecode.instructions):
        if isinstance(item, Label):
            targets[item] = len(instrs)
        else:
            instrs.append(item)
            items.append(index)
    return instrs, items, targets


def _inner_first(region: tuple[int, int, int, Region]) -> tuple[int, int, int]:
    start, end, order, _ = region
    return (-start, end, -order)


def _protections(bytecode: Bytecode, targets: dict[Label, int], count: int) -> list[Protection | None]:
    """Return the innermost region of every instruction."""
    found: list[Protection | None] = [None] * count
    regions = [(targets[r.start], targets[r.end], order, r) for order, r in enumerate(bytecode.regions)]
    for start, end, _, region in sorted(regions, key=_inner_first, reverse=True):
        assert region.depth is not None, "decode gives every region its depth"
        protection = Protection(targets[region.handler], region.depth, region.lasti)
        found[start:end] = [protection] * (end - start)
    return found


_CACHE: dict[int, tuple[weakref.ref[CodeType], DecodedCode]] = {}


def _forget(cache: dict[int, Any], key: int, _: object) -> None:
    """Drop a dead code object. The cache is an argument: at interpreter exit, module globals may go first."""
    cache.pop(key, None)


def decoded(code: CodeType) -> DecodedCode:
    """Return the prepared form of a code object, cached. All handlers must be registered before."""
    known = _CACHE.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    bytecode = decode(code)
    instrs, items, targets = _find_targets(bytecode)
    handlers = [INSTRUCTION_HANDLERS.get(instr.op, unknown_instruction) for instr in instrs]
    protections = _protections(bytecode, targets, len(instrs))
    made = DecodedCode(
        bytecode, Analyses(bytecode), handlers, instrs, targets, protections, bytecode.argument_names, items
    )
    _CACHE[id(code)] = (weakref.ref(code, functools.partial(_forget, _CACHE, id(code))), made)
    return made


def loop_instructions(code: DecodedCode, index: int) -> set[int]:
    """Return the instructions of the loops around instruction `index`, if any: it reaches them, and they reach it."""
    around = code.analyses.loop_items(code.items[index])
    return {at for at, item in enumerate(code.items) if at != index and item in around} if around else set()
