"""The launch list of a lowered program: runs of kernels, ATen calls, allocations, and when values die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from framesmith_aten.operators import is_view
from framesmith_aten.symbolic import is_symbolic
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.fused.attention import Attends, FusedAttention
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import Item, Matmul
from framesmith_backends.ir.program import Call, Layout, Place, Program, SymbolBinding, is_dense
from framesmith_backends.ir.splitting import DOWN_ON_CPU, DOWN_ON_GPU, ON_CPU, ON_GPU, Down, Splitting
from framesmith_backends.ir.symbolic.size import Symbol
from framesmith_backends.schedule.fusion.equal_groups import Alike
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node, group, stored_names, with_counts_together
from framesmith_backends.schedule.fusion.inline import Cheap, inline
from framesmith_backends.schedule.fusion.liveness import needed
from framesmith_backends.schedule.fusion.rows import with_rows
from framesmith_backends.schedule.fusion.scans import reverse_scans
from framesmith_backends.schedule.fusion.split import split_reductions
from framesmith_backends.schedule.horizontal import in_lines
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.kernels.index_splitting import split_ranges
from framesmith_backends.schedule.kernels.row_column import reduce_rows_and_columns
from framesmith_backends.schedule.matmuls.attention import Found, attentions, with_operands
from framesmith_backends.schedule.matmuls.attention_gradient import attention_gradients, moved_after
from framesmith_backends.schedule.matmuls.blas_steps import blas_matmul
from framesmith_backends.schedule.matmuls.epilogues import Choose, fusable_matmuls
from framesmith_backends.schedule.matmuls.prologues import with_prologues
from framesmith_backends.schedule.memory.arena import Order, with_arenas
from framesmith_backends.schedule.memory.in_place import copy_by_kernels, with_copies_together, write_in_place
from framesmith_backends.schedule.memory.memory_bound import run_of, with_runs_cut
from framesmith_backends.schedule.memory.order import as_late
from framesmith_backends.schedule.memory.reuse import with_drops
from framesmith_backends.schedule.steps import Allocate, CallStep, Copies, Run, Step, step_text
from framesmith_guards.torch_adapter import OpOverload


@dataclass(slots=True)
class Plan:
    """Everything a launcher needs: steps in order, and the names of inputs and outputs."""

    inputs: list[str]
    outputs: list[object]
    steps: list[Step] = field(default_factory=list)
    runtime: dict[str, str] = field(default_factory=dict)
    bindings: dict[Symbol, SymbolBinding] = field(default_factory=dict)

    @property
    def kernels(self) -> list[Kernel]:
        return [k for step in self.steps if isinstance(step, Run) for k in step.kernels]

    @property
    def matmuls(self) -> list[Matmul]:
        runs = [step for step in self.steps if isinstance(step, Run)]
        return [item for run in runs for item in run.items if isinstance(item, Matmul)]

    @property
    def launches(self) -> int:
        """How many kernels, matmuls and calls that compute there are."""
        items = sum(len(step.items) for step in self.steps if isinstance(step, Run))
        return items + sum(isinstance(step, Copies) or _computes(step) for step in self.steps)

    @property
    def fused_matmuls(self) -> list[FusedMatmul]:
        runs = [step for step in self.steps if isinstance(step, Run)]
        return [item for run in runs for item in run.items if isinstance(item, FusedMatmul)]

    @property
    def attentions(self) -> list[FusedAttention]:
        runs = [step for step in self.steps if isinstance(step, Run)]
        return [item for run in runs for item in run.items if isinstance(item, FusedAttention)]

    @property
    def attention_gradients(self) -> list[FusedAttentionGradient]:
        runs = [step for step in self.steps if isinstance(step, Run)]
        return [item for run in runs for item in run.items if isinstance(item, FusedAttentionGradient)]

    def text(self) -> str:
        lines = [f"inputs {', '.join(self.inputs)}"]
        lines += [step_text(step) for step in self.steps]
        return "\n".join([*lines, f"return {', '.join(map(str, self.outputs))}"])


def _computes(step: Step) -> bool:
    """Whether the step is a call that is no view and gives no number."""
    if not isinstance(step, CallStep) or step.place is not None or step.call.size is not None:
        return False
    target, value = step.call.node.target, step.call.node.meta.get("val")
    is_number = is_symbolic(value) or isinstance(value, (bool, int, float))
    return isinstance(target, OpOverload) and not is_view(target) and not is_number


@dataclass(frozen=True, slots=True)
class Target:
    """What the passes weigh by the machine.

    Which reductions are done in two halves, what is computed again, whether copies onto inputs are kernels (otherwise
    they are one call for each type, and counts share a kernel), whether values that only kernels see are laid out in
    rows where these are reduced, how rows and columns of the same points are reduced in one kernel (None: they are
    not), and whether kernels that are alike are one launch.
    """

    splitting: Splitting
    cheap: Cheap
    copies_by_kernels: bool
    rows: bool
    row_column: Down | None
    sets: bool


#: On a GPU computing takes less time than a launch, and than what is stored and read back. There a copy is a launch in
#: any case, and a kernel of ours one more to compile. On a CPU vectors along other dimensions than rows are as fast.
CPU = Target(
    ON_CPU, Cheap(cost=4, loads=2, users=4), copies_by_kernels=True, rows=False, row_column=DOWN_ON_CPU, sets=False
)
GPU = Target(
    ON_GPU, Cheap(cost=32, loads=2, users=4), copies_by_kernels=False, rows=True, row_column=DOWN_ON_GPU, sets=True
)


def scheduled(program: Program, target: Target = CPU) -> tuple[Program, list[Node]]:
    """The passes over a lowered program, and its kernels and calls in order."""
    program = needed(program)
    if target.rows:
        program = with_rows(program)
    whole = program
    program, nodes = _grouped(program, target)
    if target.row_column is not None:
        program, nodes = reduce_rows_and_columns(
            program, nodes, lambda names: _grouped(whole, target, names), target.row_column
        )
    return program, nodes if target.copies_by_kernels else with_counts_together(nodes, program)


def _grouped(program: Program, target: Target, row_column: frozenset[str] = frozenset()) -> tuple[Program, list[Node]]:
    """Its kernels and calls; reductions of these names are cut so that rows may be reduced along with their parts."""
    program = inline(split_reductions(program, target.splitting, row_column, target.row_column), target.cheap)
    program = reverse_scans(needed(program))
    return program, group(program)


def make_plan(
    program: Program,
    scratch: bool = True,
    native: bool = False,
    apart: bool = True,
    target: Target = CPU,
    choose: Choose | None = None,
    attends: Attends | None = None,
    order: Order | None = None,
) -> Plan:
    """Schedule the program and lay out its launch list.

    Without `scratch`, kernels compute again instead. With `native`, matmuls run between kernels, and what
    lives within a run lies in its arena. With `apart`, parts of a concatenation may be written by kernels of their own.
    `target` is what the kernels are for. `choose` says which matmuls run as one kernel with what follows, and how.
    With `attends`, attention is one kernel where that says so. With `order`, in which the items of a run are launched,
    what lives within a run lies in its arena, too.
    """
    program, nodes = scheduled(program, target)
    stored = stored_names(program, nodes)
    plan = Plan(list(program.inputs), list(program.outputs), runtime=program.runtime, bindings=program.bindings)
    matmuls = _matmuls(program, nodes) if native else {}
    program, nodes, fused, gone = _attention(program, nodes, stored, attends)
    if choose is not None:
        rest = [node for node in nodes if not isinstance(node, CallNode) or node.call.name not in gone]
        taken = {param.name for items in fused.values() for item in items for param in item.params}
        program, matmuls_fused, calls_fused, kernels_fused = _fused(program, rest, stored, choose, taken)
        fused, gone = fused | matmuls_fused, gone | calls_fused
        nodes = [node for node in nodes if node.number not in kernels_fused]
    views = _late_views(program, nodes, {*matmuls, *gone})
    calls_made = {node.call.name for node in nodes if isinstance(node, CallNode)} - {*matmuls, *gone, *views}
    nodes = as_late(nodes, program, stored, calls_made, fused)
    read = {load.source for d in program.defs.values() for load in loads(d.body)}
    read.update(param.name for matmul in matmuls.values() for param in matmul.params)
    read.update(param.name for own in fused.values() for item in own for param in item.params)
    read.update(_shown(program, name) for name, is_needed in views.items() if is_needed)
    calls: list[CallStep] = []  # views, to be taken when the run at hand has ended
    items: list[Item] = []
    built = Alike(
        program, stored, lambda name, node: split_ranges(build_kernel(name, program, node, stored, scratch), apart)
    )
    count = 0
    for node in nodes:
        if node.number in fused:
            items += fused[node.number]
        elif isinstance(node, Group):
            for piece in built.kernels(f"kernel{count}", node):
                items += in_lines(piece) if target.sets else [piece]
            count += 1
        elif node.call.name in matmuls:
            items.append(matmuls[node.call.name])
        elif node.call.name not in views and node.call.name not in gone:
            layout = program.layouts.get(node.call.name) if node.call.name in read else None
            plan.steps += [*_run_steps(f"run{len(plan.steps)}", items, program), *calls, CallStep(node.call, layout)]
            items, calls = [], []
        elif views.get(node.call.name, False):
            calls.append(_view_step(program, node.call))
    plan.steps += [*_run_steps(f"run{len(plan.steps)}", items, program), *calls]
    plan.steps = write_in_place(_allocated_once(plan.steps), program)
    if target.copies_by_kernels:
        plan.steps = copy_by_kernels(plan.steps, program)
    _shape_outputs(plan, program)
    if not target.copies_by_kernels:
        plan.steps = with_copies_together(plan.steps, program)
    outputs = {name for name in plan.outputs if isinstance(name, str)}
    inputs = {name: program.layouts.get(name) for name in plan.inputs}
    plan.steps = with_runs_cut(plan.steps, inputs, outputs)
    if native or order is not None:
        plan.steps = with_arenas(plan.steps, outputs, order)
    plan.steps = with_drops(plan.steps, inputs, outputs | _called_with(plan.steps), outputs | program.numbers)
    return plan


def _matmuls(program: Program, nodes: list[Node]) -> dict[str, Matmul]:
    calls = [node.call for node in nodes if isinstance(node, CallNode) and not node.call.effect]
    found = {call.name: blas_matmul(program, call) for call in calls}
    return {name: matmul for name, matmul in found.items() if isinstance(matmul, Matmul)}


def _attention(
    program: Program, nodes: list[Node], stored: frozenset[str], attends: Attends | None
) -> tuple[Program, list[Node], dict[int, tuple[Item, ...]], set[str]]:
    """The program and nodes with attention as one kernel, that by the number of its node, and calls that it makes.

    A call is made by one of them: what a second one would read of the first is not in memory.
    """
    if attends is None:
        return program, nodes, {}, set()
    found = [*attentions(program, nodes, stored), *attention_gradients(program, nodes, stored)]
    taken: list[Found] = []
    for one in found:
        if any(not one.calls.isdisjoint(other.calls) for other in taken):
            continue
        device = next(program.layouts[item.params[-1].name].device for item in one.items.values())
        order = moved_after(nodes, one)
        if order is not None and all(attends(kind, device) for kind in one.factors):
            nodes = order
            taken.append(one)
    program, nodes = with_operands(program, nodes, taken)
    gone = {name for one in taken for name in one.calls}
    return program, nodes, {at: (item,) for one in taken for at, item in one.items.items()}, gone


def _fused(
    program: Program, nodes: list[Node], stored: frozenset[str], choose: Choose, read: Collection[str]
) -> tuple[Program, dict[int, tuple[Item, ...]], set[str], set[int]]:
    """The program with buffers for them, the items that run at nodes by their numbers, calls and nodes within these.

    `read` are buffers that others than the nodes read.
    """
    views = _late_views(program, nodes, ())
    calls = [node.call for node in nodes if isinstance(node, CallNode) and views.get(node.call.name, True)]
    needed = {name for call in calls for name in _view_step(program, call).call.needs}.union(read)
    found = fusable_matmuls(program, nodes, stored, needed)
    found = with_prologues(program, nodes, found, stored, read)
    tiles = choose(found, program) if found else {}
    taken = [one for one in found if one.call.name in tiles]
    layouts = dict(program.layouts)
    for one in taken:
        layouts |= one.added(tiles[one.call.name], layouts[one.call.name].device)
    items = {one.at: one.items(tiles[one.call.name]) for one in taken}
    within = {number for one in taken for number in one.taken(tiles[one.call.name])}
    return replace(program, layouts=layouts), items, {one.call.name for one in taken}, within


def _late_views(program: Program, nodes: list[Node], matmuls: Collection[str]) -> dict[str, bool]:
    """Views that no kernel or matmul needs as a tensor, by name: whether an output or an ATen call needs them."""
    needed = {name for name in program.outputs if isinstance(name, str)}
    bindings = {binding.source for binding in program.bindings.values()}
    views: dict[str, bool] = {}
    for node in reversed(nodes):
        if not isinstance(node, CallNode) or node.call.name in matmuls:
            continue
        shows = node.call.name in program.places or _gives_views(node.call)
        shows = shows and not node.call.effect and node.call.name not in bindings
        if shows:
            views[node.call.name] = node.call.name in needed
        if not shows or views[node.call.name]:
            needed.update(_view_step(program, node.call).call.needs)
    return views


def _gives_views(call: Call) -> bool:
    """Whether the result is several views at once, of which kernels and other calls take one by one."""
    return is_view(call.node.target) and isinstance(call.node.meta.get("val"), (list, tuple))


def _view_step(program: Program, call: Call) -> CallStep:
    """The call as a step: a view whose place is known is one of the buffer itself, whatever lies between."""
    place = _fixed_place(program, call.name)
    return CallStep(call, None) if place is None else CallStep(replace(call, needs=(place.source,)), None, place)


def _fixed_place(program: Program, name: str) -> Place | None:
    """Where a view lies, if no size of that changes."""
    place = program.places.get(name)
    if place is None or not all(isinstance(n, int) for n in (place.offset, *place.shape, *place.strides)):
        return None
    return place


def _shown(program: Program, name: str) -> str:
    """The buffer that a view is of, or the view where that is not asked for by its place."""
    place = _fixed_place(program, name)
    return name if place is None else place.source


def _shape_outputs(plan: Plan, program: Program) -> None:
    """Give buffers of which nothing is needed but a view of the whole, an output, that view's shape from the start."""
    calls = {step.call.name: step.call for step in plan.steps if isinstance(step, CallStep)}
    uses = Counter(name for call in calls.values() for name in call.needs)
    uses.update(name for name in plan.outputs if isinstance(name, str))
    made = {step.name: step.layout for step in plan.steps if isinstance(step, Allocate)}
    shaped: dict[str, Layout] = {}
    given: dict[object, str] = {}
    gone: set[str] = set()
    for name in dict.fromkeys(plan.outputs):
        place = program.places.get(name) if isinstance(name, str) else None
        base = None if place is None else made.get(place.source)
        chain = _chain(str(name), calls, program)
        if base is None or place is None or chain[-1] != place.source or any(uses[link] != 1 for link in chain):
            continue
        layout = Layout(place.shape, place.strides, base.dtype, base.device)
        if place.offset == 0 and layout.numel == base.numel and is_dense(layout):
            shaped[place.source], given[name] = layout, place.source
            gone.update(chain[:-1])
    steps = [step for step in plan.steps if not (isinstance(step, CallStep) and step.call.name in gone)]
    plan.steps = [
        replace(step, layout=shaped.get(step.name, step.layout)) if isinstance(step, Allocate) else step
        for step in steps
    ]
    plan.outputs = [given.get(name, name) for name in plan.outputs]


def _chain(name: str, calls: Mapping[str, Call], program: Program) -> list[str]:
    """The view, what it is a view of, and so on."""
    found = [name]
    while found[-1] in program.places and found[-1] in calls:
        found.append(calls[found[-1]].needs[0])
    return found


def _run_steps(entry: str, items: list[Item], program: Program) -> list[Step]:
    """What runs them, if there are any."""
    if not items:
        return []
    written = dict.fromkeys(p.name for item in items for p in item.params if p.written)
    return [*(Allocate(name, program.layouts[name]) for name in written), run_of(entry, items)]


def _allocated_once(steps: list[Step]) -> list[Step]:
    """Without allocations of what is there: of buffers that are updated in a later run than the one that makes them."""
    known: set[str] = set()
    kept: list[Step] = []
    for step in steps:
        if not isinstance(step, Allocate):
            kept.append(step)
        elif step.name not in known:
            known.add(step.name)
            kept.append(step)
    return kept


def _called_with(steps: list[Step]) -> set[str]:
    """Buffers that calls may alias: their memory may be seen after their last use by name."""
    calls = [step.call for step in steps if isinstance(step, CallStep)]
    return {name for call in calls for name in (call.name, *call.needs)}
