"""The launch list of a lowered program: runs of kernels, ATen calls, allocations, and when values die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from framesmith_aten.operators import is_view
from framesmith_aten.symbolic import is_symbolic
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.fused.attention import Attends
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import Item, Matmul
from framesmith_backends.ir.program import BufferView, Call, Layout, Program, SymbolBinding, is_dense
from framesmith_backends.ir.symbolic.size import Symbol
from framesmith_backends.passes import Pass, run_passes
from framesmith_backends.reporting import Refusal, note
from framesmith_backends.schedule.fusion.definitions import needed, reverse_scans, use_row_layouts
from framesmith_backends.schedule.fusion.equal_groups import SharedKernels
from framesmith_backends.schedule.fusion.group import Group, Node, group, stored_names, with_counts_together
from framesmith_backends.schedule.fusion.inline import inline
from framesmith_backends.schedule.fusion.split import split_reductions
from framesmith_backends.schedule.horizontal import split_independent_stores
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import split_ranges
from framesmith_backends.schedule.kernels.row_column import reduce_rows_and_columns
from framesmith_backends.schedule.matmuls.attention import Found, attentions, with_operands
from framesmith_backends.schedule.matmuls.attention_gradient import attention_gradients, moved_after
from framesmith_backends.schedule.matmuls.epilogues import ChooseTiles, fusable_matmuls, with_prologues
from framesmith_backends.schedule.matmuls.grouped import Grouped
from framesmith_backends.schedule.matmuls.operators import blas_matmul
from framesmith_backends.schedule.memory import arena, in_place, memory_bound, reuse
from framesmith_backends.schedule.memory.arena import Positions
from framesmith_backends.schedule.memory.order import hoist_what_frees, sink_to_uses
from framesmith_backends.schedule.steps import Allocate, CallStep, CopyStep, Run, Step, run_of, step_text
from framesmith_backends.target import Target
from framesmith_guards.torch_adapter import OpOverload

ItemT = TypeVar("ItemT")


@dataclass(slots=True)
class Plan:
    """Everything a launcher needs: steps in order, and the names of inputs and outputs."""

    inputs: list[str]
    outputs: list[object]
    steps: list[Step] = field(default_factory=list)
    runtime: dict[str, str] = field(default_factory=dict)
    bindings: dict[Symbol, SymbolBinding] = field(default_factory=dict)

    @property
    def output_names(self) -> set[str]:
        """Outputs that are buffers, not numbers."""
        return {name for name in self.outputs if isinstance(name, str)}

    @property
    def runs(self) -> list[Run]:
        return [step for step in self.steps if isinstance(step, Run)]

    @property
    def items(self) -> list[Item]:
        return [item for run in self.runs for item in run.items]

    def items_of(self, kind: type[ItemT]) -> list[ItemT]:
        return [item for item in self.items if isinstance(item, kind)]

    @property
    def kernels(self) -> list[Kernel]:
        return self.items_of(Kernel)

    @property
    def launches(self) -> int:
        """The number of kernels, matmuls and calls that compute."""
        return len(self.items) + sum(isinstance(step, CopyStep) or _computes(step) for step in self.steps)

    def text(self) -> str:
        lines = [f"inputs {', '.join(self.inputs)}"]
        lines += [step_text(step) for step in self.steps]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])


def _computes(step: Step) -> bool:
    """Whether the step is a call that is no view and gives no number."""
    if not isinstance(step, CallStep) or step.view is not None or step.call.size is not None:
        return False
    target, value = step.call.node.target, step.call.node.meta.get("val")
    is_number = is_symbolic(value) or isinstance(value, (bool, int, float))
    return isinstance(target, OpOverload) and not is_view(target) and not is_number


@dataclass(frozen=True, slots=True)
class Fusing:
    """The context of passes before fusion: `in_parts` are the sums down columns that are split for rows of theirs."""

    target: Target
    in_parts: frozenset[str] = frozenset()


#: Passes over a lowered program.
PROGRAM_PASSES: tuple[Pass[Program, Target], ...] = (
    Pass("dead-definitions", lambda program, _: needed(program)),
    Pass("row-layouts", lambda program, _: use_row_layouts(program), lambda target: target.row_layouts),
)
#: Passes over a program whose definitions are about to be grouped.
FUSION_PASSES: tuple[Pass[Program, Fusing], ...] = (
    Pass("split-reductions", lambda program, f: split_reductions(program, f.target, f.in_parts)),
    Pass("inline", lambda program, f: inline(program, f.target.inline)),
    Pass("dead-definitions", lambda program, _: needed(program)),
    Pass("reverse-scans", lambda program, _: reverse_scans(program)),
)


@dataclass(frozen=True, slots=True)
class Planning:
    """The context of passes over a launch list; `arenas` and `positions`: see `place_buffers`."""

    program: Program
    target: Target
    arenas: bool = False
    positions: Positions = field(default_factory=dict)

    def inputs(self, plan: Plan) -> dict[str, Layout | None]:
        """Return the inputs, with the layouts of those whose memory may be freed after their last use."""
        held, layouts = self.program.held, self.program.layouts
        return {name: None if name in held else layouts.get(name) for name in plan.inputs}


def _with_drops(plan: Plan, p: Planning) -> list[Step]:
    """The steps with drops; memory that calls may alias may be seen after its last use by name."""
    outputs, calls = plan.output_names, [step.call for step in plan.steps if isinstance(step, CallStep)]
    shown = outputs.union(*((call.name, *call.needs) for call in calls))
    return reuse.with_drops(plan.steps, p.inputs(plan), shown, outputs | p.program.numbers)


def _on_steps(
    name: str, run: Callable[[Plan, Planning], list[Step]], applies_to: Callable[[Planning], bool] = lambda _: True
) -> Pass[Plan, Planning]:

    return Pass(name, lambda plan, about: _with_steps(plan, run(plan, about)), applies_to)


def _with_steps(plan: Plan, steps: list[Step]) -> Plan:
    return plan if steps == plan.steps else replace(plan, steps=steps)


#: Passes over a launch list, before anything of it is rendered.
PLAN_PASSES: tuple[Pass[Plan, Planning], ...] = (
    _on_steps(
        "in-place-writes",
        lambda plan, p: in_place.write_in_place(_allocated_once(plan.steps), p.program, p.target.in_order),
    ),
    _on_steps(
        "copy-kernels", lambda plan, p: in_place.copy_by_kernels(plan.steps, p.program), lambda p: p.target.copy_kernels
    ),
    Pass("shaped-outputs", lambda plan, p: _shaped_outputs(plan, p.program)),
    _on_steps(
        "combined-copies",
        lambda plan, p: in_place.with_copies_together(plan.steps, p.program),
        lambda p: not p.target.copy_kernels,
    ),
    _on_steps(
        "memory-bound-runs",
        lambda plan, p: memory_bound.split_runs_by_memory(
            plan.steps, p.inputs(plan), plan.output_names, p.arenas and p.target.in_order
        ),
    ),
)
#: Passes over a launch list that say where buffers lie and when they die.
PLACING_PASSES: tuple[Pass[Plan, Planning], ...] = (
    _on_steps(
        "arenas",
        lambda plan, p: arena.with_arenas(plan.steps, plan.output_names, p.target, p.positions),
        lambda p: p.arenas,
    ),
    _on_steps("drops", _with_drops),
)


def scheduled(program: Program, target: Target) -> tuple[Program, list[Node]]:
    """Return the program after its passes, and its kernels and calls in order."""
    whole = run_passes(PROGRAM_PASSES, program, target)
    program, nodes = _grouped(whole, target)
    if target.row_column is not None:
        program, nodes = reduce_rows_and_columns(
            program, nodes, lambda names: _grouped(whole, target, names), target.row_column
        )
    return program, with_counts_together(nodes, program) if target.counts_together else nodes


def _grouped(program: Program, target: Target, in_parts: frozenset[str] = frozenset()) -> tuple[Program, list[Node]]:
    program = run_passes(FUSION_PASSES, program, Fusing(target, in_parts))
    return program, group(program)


def make_plan(program: Program, target: Target, native: bool = False) -> Plan:
    """Return the program's whole launch list; with `native`, what lives within a run lies in its arena."""
    return place_buffers(list_steps(program, target, native), program, target, native)


def place_buffers(
    plan: Plan, program: Program, target: Target, arenas: bool, positions: Positions | None = None
) -> Plan:
    """Return the launch list with drops and, if asked for, with what lives within a run in that run's arena.

    `positions` are those of the items that do not run one after another, by the entries of runs.
    """
    return run_passes(PLACING_PASSES, plan, Planning(program, target, arenas, positions or {}))


def list_steps(
    program: Program,
    target: Target,
    native: bool = False,
    choose: ChooseTiles | None = None,
    attends: Attends | None = None,
) -> Plan:
    """Schedule the program for the target and return its launch list, buffers not placed yet.

    With `native`, matmuls run between kernels. `choose` says which matmuls run as one kernel with their epilogue and
    prologue, and how. With `attends`, attention is one kernel where that says so.
    """
    program, nodes = scheduled(program, target)
    grouped = Grouped(program, nodes, stored_names(program, nodes))
    if attends is not None:
        grouped = _with_attention(grouped, attends, target)
    if native:
        grouped = _with_blas(grouped)
    if choose is not None:
        grouped = _with_epilogues(grouped, choose)
    views = _late_views(grouped)
    calls_made = grouped.calls.keys() - grouped.inside - views.keys()
    nodes = sink_to_uses(grouped.nodes, grouped.program, grouped.stored, calls_made, grouped.items)
    nodes = hoist_what_frees(nodes, grouped.program, grouped.items)
    plan = Plan(list(program.inputs), list(program.outputs), runtime=program.runtime, bindings=program.bindings)
    plan.steps = _steps(replace(grouped, nodes=nodes), target, views)
    return run_passes(PLAN_PASSES, plan, Planning(grouped.program, target, native))


def _steps(grouped: Grouped, target: Target, views: Mapping[str, bool]) -> list[Step]:
    """Return the runs and calls of these nodes; `views` see `_late_views`."""
    program = grouped.program
    read = {load.source for d in program.defs.values() for load in loads(d.body)}
    read.update(param.name for own in grouped.items.values() for item in own for param in item.params)
    read.update(_shown(program, name) for name, is_needed in views.items() if is_needed)

    def build(name: str, node: Group) -> tuple[Kernel, ...]:
        return split_ranges(build_kernel(name, program, node, grouped.stored, target.scratch), target.index_splitting)

    steps: list[Step] = []
    calls: list[CallStep] = []  # views, to be taken when the run at hand has ended
    items: list[Item] = []
    built = SharedKernels(program, grouped.stored, build)
    count = 0
    for node in grouped.nodes:
        if node.number in grouped.items:
            items += grouped.items[node.number]
        elif isinstance(node, Group):
            for kernel in built.kernels(f"kernel{count}", node):
                items += split_independent_stores(kernel) if target.horizontal else [kernel]
            count += 1
        elif node.call.name not in views and node.call.name not in grouped.inside:
            layout = program.layouts.get(node.call.name) if node.call.name in read else None
            steps += [*_run_steps(f"run{len(steps)}", items, program), *calls, CallStep(node.call, layout)]
            items, calls = [], []
        elif views.get(node.call.name, False):
            calls.append(_view_step(program, node.call))
    return [*steps, *_run_steps(f"run{len(steps)}", items, program), *calls]


def _with_blas(grouped: Grouped) -> Grouped:
    """The nodes with those calls that BLAS computes between kernels as items of runs."""
    calls = [node for name, node in grouped.calls.items() if not node.call.effect and name not in grouped.inside]
    found = {node: blas_matmul(grouped.program, node.call) for node in calls}
    for node, refusal in found.items():
        if isinstance(refusal, Refusal):
            note("matmul between kernels", node.call.name, refusal)
    matmuls = {node: matmul for node, matmul in found.items() if isinstance(matmul, Matmul)}
    items = {node.number: (matmul,) for node, matmul in matmuls.items()}
    return grouped.with_items(items, {node.call.name for node in matmuls})


def _with_attention(grouped: Grouped, attends: Attends, target: Target) -> Grouped:
    """The nodes with attention as one kernel, of those for which `attends` says so; gradients of it on GPUs.

    A call is made by one of them: what a second one would read of the first is not in memory.
    """
    nodes, chosen = [*grouped.nodes], list[Found]()
    gradients = attention_gradients(grouped) if target.on_gpu else []
    for one in (*attentions(grouped, target.on_gpu), *gradients):
        if any(not one.calls.isdisjoint(other.calls) for other in chosen):
            continue
        device = next(grouped.program.layouts[item.params[-1].name].device for item in one.items.values())
        order = moved_after(nodes, one)
        if order is not None and all(attends(kind, device) for kind in one.factors):
            nodes = order
            chosen.append(one)
    program, nodes = with_operands(grouped.program, nodes, chosen)
    items = {at: (item,) for one in chosen for at, item in one.items.items()}
    calls = {name for one in chosen for name in one.calls}
    return replace(grouped, program=program, nodes=nodes).with_items(items, calls)


def _with_epilogues(grouped: Grouped, choose: ChooseTiles) -> Grouped:
    """The nodes with the chosen matmuls as kernels with their epilogues and prologues, and the buffers of these."""
    views = _late_views(grouped)
    calls = [node for name, node in grouped.calls.items() if name not in grouped.inside and views.get(name, True)]
    read = {param.name for items in grouped.items.values() for item in items for param in item.params}
    needed = {name for node in calls for name in _view_step(grouped.program, node.call).call.needs}.union(read)
    nodes = [node for node in grouped.nodes if isinstance(node, Group) or node.call.name not in grouped.inside]
    rest = replace(grouped, nodes=nodes)
    found = with_prologues(rest, fusable_matmuls(rest, needed), read)
    tiles = choose(found, grouped.program) if found else {}
    taken = [(one, tiles[one.call.name]) for one in found if one.call.name in tiles]
    layouts = dict(grouped.program.layouts)
    for one, tile in taken:
        layouts |= one.added(tile, layouts[one.call.name].device)
    within = {number for one, tile in taken for number in one.taken(tile)}
    nodes = [node for node in grouped.nodes if node.number not in within]
    made = replace(grouped, program=replace(grouped.program, layouts=layouts), nodes=nodes)
    return made.with_items({one.at: one.items(tile) for one, tile in taken}, {one.call.name for one, _ in taken})


def _late_views(grouped: Grouped) -> dict[str, bool]:
    """Views that no kernel or matmul needs as a tensor, by name: whether an output or an ATen call needs them."""
    program = grouped.program
    needed = {name for name in program.outputs if isinstance(name, str)}
    bindings = {binding.source for binding in program.bindings.values()}
    views: dict[str, bool] = {}
    for name, node in reversed(grouped.calls.items()):
        if name in grouped.inside:
            continue
        target, value = node.call.node.target, node.call.node.meta.get("val")
        shows = name in program.views or (is_view(target) and isinstance(value, (list, tuple)))  # taken one by one
        shows = shows and not node.call.effect and name not in bindings
        if shows:
            views[name] = name in needed
        if not shows or views[name]:
            needed.update(_view_step(program, node.call).call.needs)
    return views


def _view_step(program: Program, call: Call) -> CallStep:
    """Return the call as a step: a view of known layout is one of the buffer itself."""
    place = _fixed_view(program, call.name)
    return CallStep(call, None) if place is None else CallStep(replace(call, needs=(place.source,)), None, place)


def _fixed_view(program: Program, name: str) -> BufferView | None:
    """Return the view of that name, if its layout is static."""
    place = program.views.get(name)
    if place is None or not all(isinstance(n, int) for n in (place.offset, *place.shape, *place.strides)):
        return None
    return place


def _shown(program: Program, name: str) -> str:
    """Return the buffer of a view of static layout; otherwise the view."""
    place = _fixed_view(program, name)
    return name if place is None else place.source


def _shaped_outputs(plan: Plan, program: Program) -> Plan:
    """Give buffers of which only a view of the whole is needed, an output, that view's shape from the start."""
    calls = {step.call.name: step.call for step in plan.steps if isinstance(step, CallStep)}
    uses = Counter(name for call in calls.values() for name in call.needs)
    uses.update(name for name in plan.outputs if isinstance(name, str))
    made = {step.name: step.layout for step in plan.steps if isinstance(step, Allocate)}
    shaped: dict[str, Layout] = {}
    given: dict[object, str] = {}
    gone: set[str] = set()
    for name in dict.fromkeys(plan.outputs):
        place = program.views.get(name) if isinstance(name, str) else None
        base = None if place is None else made.get(place.source)
        chain = _chain(str(name), calls, program)
        if base is None or place is None or chain[-1] != place.source or any(uses[link] != 1 for link in chain):
            continue
        layout = Layout(place.shape, place.strides, base.dtype, base.device)
        if place.offset == 0 and layout.numel == base.numel and is_dense(layout):
            shaped[place.source], given[name] = layout, place.source
            gone.update(chain[:-1])
    if not shaped:
        return plan
    steps = [step for step in plan.steps if not (isinstance(step, CallStep) and step.call.name in gone)]
    steps = [
        replace(step, layout=shaped.get(step.name, step.layout)) if isinstance(step, Allocate) else step
        for step in steps
    ]
    return replace(plan, steps=steps, outputs=[given.get(name, name) for name in plan.outputs])


def _chain(name: str, calls: Mapping[str, Call], program: Program) -> list[str]:
    found = [name]
    while found[-1] in program.views and found[-1] in calls:
        found.append(calls[found[-1]].needs[0])
    return found


def _run_steps(entry: str, items: list[Item], program: Program) -> list[Step]:
    if not items:
        return []
    written = dict.fromkeys(p.name for item in items for p in item.params if p.written)
    return [*(Allocate(name, program.layouts[name]) for name in written), run_of(entry, items)]


def _allocated_once(steps: list[Step]) -> list[Step]:
    """Drop repeated allocations: of buffers that a later run than the one that makes them updates."""
    first = {step.name: at for at, step in reversed([*enumerate(steps)]) if isinstance(step, Allocate)}
    return [step for at, step in enumerate(steps) if not isinstance(step, Allocate) or first[step.name] == at]
