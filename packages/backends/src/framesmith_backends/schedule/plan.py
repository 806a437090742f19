"""The launch list of a lowered program: runs of kernels, ATen calls, allocations, and when values die."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.program import Layout, Program, Teller
from framesmith_backends.ir.size import Symbol
from framesmith_backends.schedule.build import build_kernel
from framesmith_backends.schedule.group import CallNode, Group, Node, group
from framesmith_backends.schedule.in_place import write_in_place
from framesmith_backends.schedule.inline import inline
from framesmith_backends.schedule.liveness import needed
from framesmith_backends.schedule.split import split_reductions
from framesmith_backends.schedule.steps import Allocate, CallStep, Drop, Run, Step, step_text


@dataclass(slots=True)
class Plan:
    """Everything a launcher needs: steps in order, and the names of inputs and outputs."""

    inputs: list[str]
    outputs: list[object]
    steps: list[Step] = field(default_factory=list)
    runtime: dict[str, str] = field(default_factory=dict)
    tellers: dict[Symbol, Teller] = field(default_factory=dict)

    @property
    def kernels(self) -> list[Kernel]:
        return [k for step in self.steps if isinstance(step, Run) for k in step.kernels]

    def text(self) -> str:
        lines = [f"inputs {', '.join(self.inputs)}"]
        lines += [step_text(step) for step in self.steps]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])


def scheduled(program: Program) -> tuple[Program, list[Node]]:
    """The passes over a lowered program, and its kernels and calls in order."""
    program = inline(split_reductions(needed(program)))
    program = needed(program)
    return program, group(program)


def stored_names(program: Program, nodes: list[Node]) -> frozenset[str]:
    """Definitions that need memory: those kept, and those a kernel other than their own reads."""
    owner = {d.name: node for node in nodes if isinstance(node, Group) for d in node.members}
    stored = set(program.kept)
    for d in program.defs.values():
        for load in loads(d.body):
            if load.source in owner and owner[load.source] is not owner[d.name]:
                stored.add(load.source)
    return frozenset(stored)


def make_plan(program: Program, scratch: bool = True) -> Plan:
    """Schedule the program and lay out its launch list. Without `scratch`, kernels compute again instead."""
    program, nodes = scheduled(program)
    stored = stored_names(program, nodes)
    plan = Plan(list(program.inputs), list(program.outputs), runtime=program.runtime, tellers=program.tellers)
    read = {load.source for d in program.defs.values() for load in loads(d.body)}
    count = 0
    for is_group, some in groupby(nodes, key=lambda n: isinstance(n, Group)):
        if not is_group:
            for node in some:
                assert isinstance(node, CallNode)
                layout = program.layouts.get(node.call.name) if node.call.name in read else None
                plan.steps.append(CallStep(node.call, layout))
            continue
        kernels = []
        for node in some:
            assert isinstance(node, Group)
            kernels.append(build_kernel(f"kernel{count}", program, node, stored, scratch))
            count += 1
        plan.steps += _run_steps(f"run{len(plan.steps)}", kernels, program)
    plan.steps = write_in_place(plan.steps, program)
    _drop_dead(plan, _fixed(program), program.numbers)
    return plan


def _run_steps(entry: str, kernels: list[Kernel], program: Program) -> list[Step]:
    written = dict.fromkeys(p.name for k in kernels for p in k.params if p.written)
    used = dict.fromkeys(p.name for k in kernels for p in k.params)
    allocations: list[Step] = [Allocate(name, program.layouts[name]) for name in written]
    numbers = dict.fromkeys(n for k in kernels for n in k.numbers)
    return [*allocations, Run(entry, tuple(kernels), tuple(used), tuple(numbers))]


def _fixed(program: Program) -> set[str]:
    """Buffers whose memory may be seen after their last use by name: outputs and what calls may alias."""
    fixed = {name for name in program.outputs if isinstance(name, str)}
    for call in program.calls.values():
        fixed.update(call.needs)
        fixed.add(call.name)
    return fixed


def _uses(step: Step) -> tuple[str, ...]:
    if isinstance(step, Run):
        return step.buffers
    if isinstance(step, CallStep):
        return step.call.needs
    return ()


def _drop_dead(plan: Plan, fixed: set[str], numbers: set[str]) -> None:
    """Put a Drop after each tensor's last use, and give dead buffers of equal layout to later allocations."""
    last: dict[str, int] = {}
    for position, step in enumerate(plan.steps):
        for name in (*_uses(step), *_makes(step)):
            last[name] = position
    outputs = {name for name in plan.outputs if isinstance(name, str)} | numbers
    layouts = {s.name: s.layout for s in plan.steps if isinstance(s, Allocate)}
    free: dict[Layout, list[str]] = {}
    steps: list[Step] = []
    for position, step in enumerate(plan.steps):
        if isinstance(step, Allocate) and step.name not in outputs and free.get(step.layout):
            step = Allocate(step.name, step.layout, free[step.layout].pop())
        steps.append(step)
        dead = tuple(n for n in (*_uses(step), *_makes(step)) if last.get(n) == position and n not in outputs)
        dead = tuple(dict.fromkeys(dead))
        for name in dead:
            if name in layouts and name not in fixed:
                free.setdefault(layouts[name], []).append(name)
        gone = tuple(n for n in dead if not (n in layouts and n not in fixed))
        if gone:
            steps.append(Drop(gone))
    plan.steps = steps


def _makes(step: Step) -> tuple[str, ...]:
    if isinstance(step, CallStep):
        return (step.call.name,)
    return (step.name,) if isinstance(step, Allocate) else ()
