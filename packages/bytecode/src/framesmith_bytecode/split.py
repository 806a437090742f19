"""Cuts a function in two at an instruction: a prefix that hands over to a continuation, `split`.

Note [A call that fails while an exception is handled]: a place inside an `except` block has the exception handled
before on its stack, and the continuation restores it. If the call fails before the continuation runs, as at the
recursion limit, nobody would, and `sys.exc_info()` would be wrong ever after. So the prefix keeps a copy of what was
handled before the function handled anything, and restores that when the call raises; after the continuation did, it
changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from types import CodeType
from typing import NamedTuple

from framesmith_bytecode.analyses import Analyses, analysed
from framesmith_bytecode.codegen import Codegen
from framesmith_bytecode.continuation import UNBOUND, Continuation, Parameter, make_continuation
from framesmith_bytecode.encode import encode
from framesmith_bytecode.model import Bytecode, Instr, Label
from framesmith_bytecode.slots import HANDLED, Kind, carrier_name


class Split(NamedTuple):
    """`prefix` stands in for the function: it runs up to the split point and returns what the continuation returns."""

    prefix: CodeType
    continuation: Continuation


def _load_or_unbound(codegen: Codegen, name: str) -> None:
    """Push what a local's slot holds, or UNBOUND if it is unbound, and unbind it."""
    missing, done = Label(), Label()
    with codegen.protected(missing):
        codegen.emit("LOAD_FAST_CHECK", name)
    codegen.emit("DELETE_FAST", name)
    codegen.jump(done)
    codegen.mark(missing)
    codegen.emit("PUSH_EXC_INFO")
    codegen.pop()
    codegen.emit("POP_EXCEPT")
    codegen.load_const(UNBOUND)
    codegen.mark(done)


def _pass_argument(codegen: Codegen, parameter: Parameter, spilled: list[str]) -> None:
    if parameter.kind == "contents":
        codegen.load(str(parameter.source))
        return
    name = spilled[parameter.source] if isinstance(parameter.source, int) else parameter.source
    if parameter.maybe_missing:
        _load_or_unbound(codegen, name)
    else:
        codegen.emit("LOAD_FAST", name)
        codegen.emit("DELETE_FAST", name)


def _call(codegen: Codegen, continuation: Continuation, spilled: list[str]) -> None:
    """Push what the continuation returns."""
    codegen.push_callable(lambda: codegen.make_function(continuation.code, continuation.freevars))
    for parameter in continuation.parameters:
        _pass_argument(codegen, parameter, spilled)
    codegen.call(len(continuation.parameters))


def _call_restoring(codegen: Codegen, continuation: Continuation, spilled: list[str], handled: str) -> None:
    """The same; see Note [A call that fails while an exception is handled]."""
    failed, done = Label(), Label()
    codegen.emit("LOAD_FAST", handled)
    with codegen.protected(failed):
        _call(codegen, continuation, spilled)
    codegen.swap(2)
    codegen.pop()
    codegen.jump(done)
    codegen.mark(failed)
    codegen.swap(2)
    codegen.emit("POP_EXCEPT")
    codegen.emit("RERAISE", 0)
    codegen.mark(done)


def _handover(bytecode: Bytecode, continuation: Continuation, kinds: list[Kind], label: Label) -> Codegen:
    """Instructions that move the stack into temporaries, call the continuation and return its result."""
    codegen = Codegen.like(bytecode, {})
    at = bytecode.instructions[continuation.index]
    codegen.position = at.position if isinstance(at, Instr) else None
    codegen.mark(label)
    spilled = [codegen.new_temp(f"slot_{slot}") for slot in range(len(kinds))]
    handled = kinds.index(HANDLED) if HANDLED in kinds else None
    if handled is not None:  # a name that says what it holds
        spilled[handled] = carrier_name(HANDLED, handled, codegen.varnames)
        codegen.varnames.append(spilled[handled])
    for name in reversed(spilled):
        codegen.emit("STORE_FAST", name)
    if handled is None:
        _call(codegen, continuation, spilled)
    else:
        _call_restoring(codegen, continuation, spilled, spilled[handled])
    codegen.return_value()
    return codegen


def split(function: Bytecode | Analyses, index: int) -> Split:
    """A prefix and a continuation at item `index`; running the prefix equals running the function.

    `Analyses(bytecode)` in place of the bytecode saves work when one function is split at many places.
    Raises `ContinuationError` where there can be no continuation, an index outside the items
    included.
    """
    known = analysed(function, "split")
    bytecode = known.bytecode
    continuation = make_continuation(known, index, own_cells=True)
    index = continuation.index
    label = Label("handover")
    codegen = _handover(bytecode, continuation, known.depths.kinds(index), label)
    at = bytecode.instructions[index]
    jump = Instr("JUMP", label, at.position if isinstance(at, Instr) else None)
    while isinstance(bytecode.instructions[index], Label):  # a region may end here, and the jump is not part of it
        index += 1
    items = [*bytecode.instructions[:index], jump, *bytecode.instructions[index:], *codegen.instructions]
    whole = replace(
        bytecode,
        instructions=items,
        regions=[*bytecode.regions, *codegen.regions],
        varnames=codegen.varnames,
    )
    return Split(encode(whole), continuation)
