"""Decoded code: protections, targets, the cache; and its continuations."""

from __future__ import annotations

import gc

import pytest

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.interpreter import decoded as decoding
from framesmith_dynamo.interpreter import handlers
from framesmith_dynamo.interpreter.decoded import decoded
from framesmith_dynamo.interpreter.handler_registry import INSTRUCTION_HANDLERS, interprets, unknown_instruction
from framesmith_dynamo.residual.continuations import can_recur, continuation_at

handlers.load()


def loop(items):
    total = 0
    for item in items:
        total += item
    return total


def guarded(x):
    y = x
    try:
        y = int(x)
    except ValueError:
        y = 0
    return y


def index_of(code, op, which=0):
    return [i for i, instr in enumerate(code.instrs) if instr.op == op][which]


def test_every_ordinary_instruction_has_a_handler() -> None:
    for function in (loop, guarded):
        assert unknown_instruction not in decoded(function.__code__).handlers


def test_protections_cover_the_block_only() -> None:
    code = decoded(guarded.__code__)
    call = index_of(code, "CALL")
    protection = code.protections[call]
    assert protection is not None
    assert code.instrs[protection.target].op == "PUSH_EXC_INFO"
    assert code.protections[0] is None


def test_prepared_once_and_forgotten_with_the_code() -> None:
    namespace: dict = {}
    exec("def f(x): return x", namespace)
    code = namespace["f"].__code__
    assert decoded(code) is decoded(code)
    key = id(code)
    assert key in decoding._CACHE
    del code, namespace
    gc.collect()
    assert key not in decoding._CACHE


def test_what_can_come_again() -> None:
    code = decoded(loop.__code__)
    add, last = index_of(code, "BINARY_OP"), index_of(code, "RETURN_VALUE")
    assert can_recur(code, add + 1, add)
    assert not can_recur(code, last, add)
    assert not can_recur(code, add, index_of(code, "GET_ITER"))


def test_a_continuation_is_made_once_and_not_chained_at_one_instruction() -> None:
    code = decoded(guarded.__code__)
    end = index_of(code, "RETURN_VALUE")
    first = continuation_at(code, end, (), ["x", "y"], 0)
    assert continuation_at(code, end, (), ["y", "x"], 0) is first
    rest = decoded(first.code)
    rest.broken_at |= {(rest.instrs[0].op, rest.instrs[0].position)}
    with pytest.raises(GraphBreak, match="same instruction"):
        continuation_at(rest, len(rest.instrs) - 1, (), [], 0)


def test_an_operation_has_one_handler() -> None:
    assert "LOAD_FAST" in INSTRUCTION_HANDLERS
    with pytest.raises(ValueError, match="'LOAD_FAST' is registered already"):
        interprets("LOAD_FAST")(unknown_instruction)
