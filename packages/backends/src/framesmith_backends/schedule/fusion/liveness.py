"""Liveness: the definitions of a lowered program that are needed, and those that must exist in memory."""

from __future__ import annotations

from dataclasses import replace

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.program import Program


def needed(program: Program) -> Program:
    """The program without dead definitions and calls; `kept` are the definitions calls or outputs use."""
    used: set[str] = set()
    kept: set[str] = set()
    stack = [name for name in program.outputs if isinstance(name, str)]
    stack += [need for call in program.calls.values() if call.effect for need in (call.name, *call.needs)]
    kept.update(stack)
    stack += [d.name for d in program.defs.values() if d.failure is not None]
    stack += [call.name for call in program.calls.values() if call.may_fail]
    while stack:
        name = stack.pop()
        if name in used:
            continue
        used.add(name)
        if name in program.defs:
            stack += [load.source for load in loads(program.defs[name].body)]
            stack += program.numbers_for(program.defs[name])
        elif name in program.calls:
            needs = program.calls[name].needs
            kept.update(needs)
            stack += [*needs, *program.numbers_for(program.calls[name])]
    return replace(
        program,
        defs={name: d for name, d in program.defs.items() if name in used},
        calls={name: c for name, c in program.calls.items() if name in used},
        kept=kept & set(program.defs),
    )
