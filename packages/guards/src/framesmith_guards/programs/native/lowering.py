"""Lowers a plan of guards to the description of a native program: registers, instructions, tensor specs, blocks.

Each source kind and each guard kind has a row (rows.py) with its native form; kinds without one, and single
expectations that have none, call the reference.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeGuard

from framesmith_guards.guard import Guard
from framesmith_guards.kinds.predicates import same_keys
from framesmith_guards.programs.native.probing import native_spec
from framesmith_guards.programs.native.rows import (
    BLOCK_KINDS,
    CHECKS,
    LOADS,
    NO_FUNCTION,
    ModulesSource,
    Operation,
    reference_check,
    reference_load,
)
from framesmith_guards.programs.native.shapes import NotInteger, Step, slow_check, steps_of
from framesmith_guards.programs.native.state import describe_state
from framesmith_guards.programs.order import Plan
from framesmith_guards.programs.render import may_run_torch_function
from framesmith_guards.sources import (
    AttrSource,
    DictKeySource,
    DictValueSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    HandledExceptionSource,
    InstanceDictSource,
    ItemSource,
    ModuleSource,
    Source,
    TensorPropertySource,
)
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.constants import same_constant

Instruction = tuple[int, int, int, int, int, int, Any, tuple[int, ...]]
"""(operator, dst, a, b, n, address, obj, operands); see `_native/instruction.h`."""

_IMPLIED: Final[dict[type[Source], Source]] = {
    GlobalSource: GlobalsDictSource(),
    ModuleSource: ModulesSource(),
    HandledExceptionSource: FunctionSource(),  # unused: the callable takes one object
}
_MODULES_OWN: Final = frozenset(dir(ModuleType))
_DICTS: Final = (dict, OrderedDict)
"""The types whose changes are tagged; the items of a tuple that is itself proved the same are the same, too."""


@dataclass
class Block:
    """The values reached from one root through dictionaries alone; see Note [Proofs] in blocks.c."""

    root: Source
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Lowering:
    """The program being made."""

    opcodes: dict[str, int]
    shape_operators: dict[str, int]
    properties: dict[str, int]
    argnames: Sequence[str]
    freevars: Sequence[str]
    guards: dict[Source, list[Guard]]
    registers: dict[Source, int] = field(default_factory=dict)
    early: list[Instruction] = field(default_factory=list)
    late: list[Instruction] = field(default_factory=list)
    blocks: dict[Source, Block] = field(default_factory=dict)
    block_of: dict[int, Block] = field(default_factory=dict)
    roots: dict[Source, Source | None] = field(default_factory=dict)
    late_registers: set[int] = field(default_factory=set)
    tensor_specs: list[tuple[Any, ...]] = field(default_factory=list)
    shapes: list[tuple[Any, ...]] = field(default_factory=list)
    native_tensors: set[Source] = field(default_factory=set)

    def register(self, source: Source) -> int:
        """Return the register of a source's value, loading it if needed."""
        known = self.registers.get(source)
        return self.load(source) if known is None else known

    def load(self, source: Source) -> int:
        """Load a source, where its base allows: in its block, early, or after the blocks."""
        base = self._base_of(source)
        a = -1 if base is None else self.register(base)
        row = LOADS.get(type(source))
        if self._in_module(source):
            operation = Operation("LOAD_ITEM", obj=source.attr)
        else:
            operation = reference_load(source) if row is None else row(self, source)
        register = self.registers[source] = len(self.registers)
        self._emit(self._place(source, a), operation, dst=register, a=a)
        return register

    def _base_of(self, source: Source) -> Source | None:
        implied = _IMPLIED.get(type(source))
        if implied is not None:
            return implied
        return InstanceDictSource(source.base) if self._in_module(source) else source.base

    def _in_module(self, source: Source) -> TypeGuard[AttrSource]:
        """Whether this is an attribute in a Python module's dict now, where getattr finds it."""
        if not isinstance(source, AttrSource) or source.attr in _MODULES_OWN:
            return False
        module = self._module(source.base)
        return type(module) is ModuleType and source.attr in vars(module)

    def _module(self, source: Source) -> object:
        if isinstance(source, ModuleSource):
            return sys.modules.get(source.module)
        known = (g.expected for g in self.guards.get(source, ()) if g.kind.name == "ID_MATCH" and not g.expected.weak)
        return next((ref.get() for ref in known), None)

    def _place(self, source: Source, a: int) -> list[Instruction]:
        root = self.block_root(source)
        if root is not None and self.registers.get(root) not in self.late_registers:
            block = self.blocks.setdefault(root, Block(root))
            self.block_of[self.registers[source]] = block
            return block.instructions
        if self._is_late((a,)):
            self.late_registers.add(self.registers[source])
            return self.late
        return self.early

    def _is_late(self, used: Sequence[int]) -> bool:
        return any(r in self.late_registers or r in self.block_of for r in used)

    def block_root(self, source: Source) -> Source | None:
        """Return the root of the source's block; None if it is not reached through dictionaries."""
        if source not in self.roots:
            self.roots[source] = self._block_root(source)
        return self.roots[source]

    def _block_root(self, source: Source) -> Source | None:
        base = source.base
        if base is None:
            return None
        if isinstance(source, InstanceDictSource) or self._in_module(source):
            return self.block_root(base) or base
        if not isinstance(source, (ItemSource, DictKeySource, DictValueSource)):
            return None
        outer = self.block_root(base)
        named = isinstance(source, ItemSource) and isinstance(source.key, str) and outer is not None
        if named or self._is_one_of(base, _DICTS if outer is None else (*_DICTS, tuple)):
            return outer or base
        return None

    def _is_one_of(self, source: Source, types: tuple[type, ...]) -> bool:
        """Whether a guard says that the value is of one of these types, dict among them."""
        for guard in self.guards.get(source, ()):
            if guard.kind.name == "DICT_KEYS":
                return True
            if guard.kind.name == "TYPE_MATCH" and guard.expected.get() in types:
                return True
        return False

    def check(self, guard: Guard) -> None:
        row = CHECKS.get(guard.kind.name)
        operation = None if row is None else row(self, guard)
        if operation is None:
            operation = reference_check(guard)
            operation.operands = self._operands(guard)
        used = (operation.a, operation.b, *operation.operands, *operation.reads)
        home = self._home(guard)
        target = home if home is not None else self.late if self._is_late(used) else self.early
        self._emit(target, operation, dst=-1, a=operation.a)

    def _home(self, guard: Guard) -> list[Instruction] | None:
        if guard.operands or not BLOCK_KINDS.get(guard.kind.name, _never)(guard, self.native_tensors):
            return None
        block = self.block_of.get(self.registers.get(guard.source, -1))
        return None if block is None else block.instructions

    def _operands(self, guard: Guard) -> tuple[int, ...]:
        own = -1 if guard.kind.only_relates else self.register(guard.source)
        return (own, *map(self.register, guard.operands))

    def _emit(self, target: list[Instruction], operation: Operation, *, dst: int, a: int) -> None:
        number = self.opcodes[operation.name]
        target.append((number, dst, a, operation.b, operation.n, operation.address, operation.obj, operation.operands))

    def tensor(self, guard: Guard) -> int | None:
        """Return the index of a TENSOR_MATCH's native spec; None if it is checked in Python."""
        spec = native_spec(guard.expected)
        if spec is None:
            return None
        self.native_tensors.add(guard.source)
        self.tensor_specs.append(spec)
        return len(self.tensor_specs) - 1

    def are_native(self, sources: Sequence[Source]) -> bool:
        """Whether all of these are tensors with native checks before this one."""
        return self.native_tensors.issuperset(sources)

    def shape(self, guard: Guard) -> tuple[int, tuple[int, ...]] | None:
        """Return the native condition of a SHAPE guard and its registers; None if it is not over ints."""
        sources = dict(guard.expected.symbols)
        order: list[str] = []

        def operand(name: str) -> Step:
            order.append(name)
            source = sources[name]
            operator = self.shape_operators["OPERAND"]
            if isinstance(source, TensorPropertySource) and source.base in self.native_tensors:
                return (operator, self.register(source.base), self.properties[source.property.upper()], source.dim or 0)
            return (operator, self.register(source), self.properties["OWN_INT"], 0)

        try:
            steps = tuple(steps_of(guard.expected.expr, operand, self.shape_operators))
        except NotInteger:
            return None
        readers = {name: _reader(sources[name], self.native_tensors) for name in order}
        self.shapes.append((steps, slow_check(guard.expected, tuple(order), readers)))
        return len(self.shapes) - 1, tuple(step[1] for step in steps if step[0] == self.shape_operators["OPERAND"])

    def describe(self, plan: Plan, inputs: Sequence[Source]) -> tuple[Any, ...]:
        results = tuple(map(self.register, inputs))
        used = {r for i in self.late for r in (i[2], i[3], *i[7])} | {s[1] for p, _ in self.shapes for s in p}
        outputs: dict[int, list[int]] = {}
        for r in sorted(used.union(results)):
            outputs.setdefault(id(self.block_of.get(r)), []).append(r)
        blocks = []
        for index, block in enumerate(self.blocks.values()):
            given = tuple(outputs.get(id(block), ()))
            blocks.append((self.registers[block.root], tuple(block.instructions), given))
            self.early.append((self.opcodes["RUN_BLOCK"], -1, -1, -1, index, 0, None, ()))
        return (
            len(self.registers),
            (*self.early, *self.late),
            tuple(self.tensor_specs),
            tuple(self.shapes),
            tuple(blocks),
            describe_state(plan.state),
            results,
            same_constant,
            same_keys,
            unstable.DisableTorchFunction if may_run_torch_function(tuple(plan.guards)) else None,
        )


def lower(
    plan: Plan,
    names: tuple[Sequence[str], Sequence[str]],
    inputs: Sequence[Source],
    numbers: tuple[dict[str, int], dict[str, int], dict[str, int]],
) -> tuple[Any, ...]:
    """Return the description of a plan for a function with these (arguments, free variables) in order.

    `numbers` are the extension's (opcodes, shape operators, properties).
    """
    guards: dict[Source, list[Guard]] = {}
    for guard in plan.guards:
        guards.setdefault(guard.source, []).append(guard)
    lowering = Lowering(*numbers, *names, guards)
    for step in plan.steps:
        if isinstance(step, Guard):
            lowering.check(step)
        elif step.guards or step.extracted or not isinstance(step.source, TensorPropertySource):
            lowering.register(step.source)
            for guard in sorted(step.guards, key=lambda guard: guard.kind.cost):
                lowering.check(guard)
    return lowering.describe(plan, inputs)


def _never(guard: Guard, tensors: set[Source]) -> bool:
    return False


def _reader(source: Source, native_tensors: set[Source]) -> Any:
    if isinstance(source, TensorPropertySource) and source.base in native_tensors:
        return lambda tensor: source.read(tensor, {}, NO_FUNCTION)
    return lambda value: value
