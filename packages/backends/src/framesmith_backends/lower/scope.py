"""The scope of a lowering rule: it makes definitions in the program, and declines with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import torch
from torch import fx

from framesmith_backends.ir.dtypes import DTYPES, FROM_TORCH, compute_type, is_float
from framesmith_backends.ir.expr import Carried, Const, Expr, Load, Op, Recurrence, cast, number, variables
from framesmith_backends.ir.ops import REDUCTIONS, SCANS, STEPS, ReductionRow
from framesmith_backends.ir.program import Def, Failure, Layout, Program, contiguous_strides, is_dense
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Sym, Undecided, numel, surely_positive
from framesmith_backends.lower.tensor import Formula, Operand, Shape, Tensor, axes_of, axis, element, point, whole
from framesmith_backends.target import Target

#: A body, and the values of its arguments -> the definitions made of these, and its results.
LowerBody = Callable[[fx.GraphModule, Sequence[Operand]], tuple[Program, list[Tensor]]]


class Decline(Exception):
    """A rule's answer that this node is to run as an ATen call; the message says why."""


@dataclass(slots=True)
class Scope:
    """The lowering of one FX node: `results` are the layouts its outputs must have, `name` its name.

    For one that is not made there is a stand-in, which is on no device; what is computed is on `device`.
    `given` are the layouts that the arguments have in eager mode, by which some of ATen's kernels are chosen; None
    where there is none. `defined` are the names of its definitions. `lower_body` lowers a graph that the node calls.
    """

    program: Program
    name: str
    origin: str
    results: tuple[Layout, ...]
    position: int
    device: str
    target: Target
    given: tuple[Layout | None, ...] = ()
    defined: set[str] = field(default_factory=set)
    lower_body: LowerBody | None = None

    @property
    def result(self) -> Layout:
        return self.results[0]

    def fresh(self) -> str:
        name = f"{self.name}.{len(self.defined) + 1}"
        self.defined.add(name)
        return name

    def define(
        self,
        layout: Layout,
        domain: tuple[Var, ...],
        axes: tuple[Var | None, ...],
        body: Expr,
        reduction: str | None = None,
        reduced: frozenset[Var] = frozenset(),
        failure: Failure | None = None,
    ) -> Tensor:
        """Add a definition under a name of its own."""
        if layout.device != self.device:
            raise AssertionError(f"a part of {self.origin} on {layout.device}, which is computed on {self.device}")
        name = self.fresh()
        d = Def(name, layout, domain, axes, body, reduction, reduced, self.origin, self.position, failure)
        self.program.defs[name] = d
        self.program.layouts[name] = layout
        return whole(name, layout.shape, layout.dtype)

    def elementwise(self, shape: Shape, body: Expr) -> Tensor:
        """A tensor of `shape` whose element at the canonical variables is `body`."""
        return self.define(self.layout_for(shape, body.dtype), _loops(shape), axes_of(shape), body)

    def made(self, body: Expr) -> Tensor:
        """The result whose element at the canonical variables is `body`, in the result's type."""
        return self.elementwise(self.result.shape, cast(body, self.result.dtype))

    def copied(self, x: Tensor, dtype: str | None = None) -> Tensor:
        """A tensor of the elements of `x`, converted to a type in one step."""
        return self.compute(lambda v: v, x, dtype=dtype or x.dtype, within=x.dtype if dtype else None)

    def check(self, shape: Shape, holds: Expr, failure: Failure) -> None:
        """The run fails unless `holds` wherever a tensor of `shape` has elements, at the canonical variables.

        What has been checked before is not checked again.
        """
        used = variables(holds)
        axes = tuple(own if (own := axis(k, size)) in used else None for k, size in enumerate(shape))
        others = numel(size for own, size in zip(axes, shape, strict=True) if own is None)
        if not surely_positive(others):
            holds = Op("or", holds, Op("eq", number(others, "i64"), number(0, "i64")))
        domain = tuple(own for own in axes if own is not None)
        if any(d.body is holds and d.domain == domain and d.failure == failure for d in self.program.defs.values()):
            return
        sizes = tuple(1 if own is None else own.size for own in axes)
        layout = Layout(sizes, contiguous_strides(sizes), "b1", self.device)
        self.define(layout, domain, axes, holds, failure=failure)

    def added(
        self, start: Tensor, shape: Shape, where: Sequence[Ix], value: Expr, *, repeatable: bool = False
    ) -> Tensor:
        """`start` with `value` added to its element `where`, at each of the canonical points of `shape` in order.

        With `repeatable` ATen's sums on a GPU are the same each time, too.
        """
        if start.dtype == "b1":
            raise Decline("additions of bools")
        loops = _loops(shape)
        if self.target.in_order:
            return self._updated("add", start, loops, _serial(loops, where), where, value)
        _decline_in_no_order(start.dtype, repeatable)
        if not any(map(index.indirect_atoms, where)) and any(index.of(v) not in where for v in loops):
            raise Decline("additions to a single place")
        return self._updated("add", start, loops, loops, where, value)

    def replaced(self, start: Tensor, shape: Shape, where: Sequence[Ix], value: Expr) -> Tensor:
        """`start` with `value` as its element `where`, at each of the canonical points of `shape` in order."""
        if not self.target.in_order:
            raise Decline("elements replaced by threads in no order")
        return self._updated("put", start, _loops(shape), _serial(_loops(shape), where), where, value)

    def _updated(
        self, kind: str, start: Tensor, loops: tuple[Var, ...], serial: Sequence[Var], where: Sequence[Ix], value: Expr
    ) -> Tensor:
        """`start` with the operation `kind` of its element `where` and `value` there, at each point of the loops.

        Points differ in place by variables that are a place themselves; those run side by side, `serial` ones in order.
        """
        if not all(
            surely_positive(size) for ix, size in zip(where, start.shape, strict=True) if index.indirect_atoms(ix)
        ):
            raise Decline("updates of what may have no elements")
        copied = self.copied(start)
        inner, old = compute_type(start.dtype), Load(copied.source, tuple(where), start.dtype)
        body = cast(Op(kind, cast(old, inner), cast(value, inner)), start.dtype)
        name, made = self.fresh(), self.program.defs[copied.source]
        self.program.defs[copied.source] = replace(made, buffer=name)
        self.program.defs[name] = Def(
            name, made.layout, loops, (), body, reduced=frozenset(serial), origin=self.origin,
            position=self.position, updates=copied.source,
        )  # fmt: skip
        self.program.layouts[name] = made.layout
        self.program.alone |= {name, copied.source}
        return whole(name, start.shape, start.dtype)

    def layout_for(self, shape: Shape, dtype: str) -> Layout:
        """The layout of a value: as the result that it is, or as one of that shape, which is made at the same points.

        Any order is right. That of a result is the one in which the kernel goes that makes both.
        """
        made = [result for result in self.results if result.device == self.device]
        for wanted in made:
            if wanted.shape == shape and wanted.dtype == dtype:
                return wanted
        for wanted in made:
            if wanted.shape == shape and is_dense(wanted):  # it is made at the same points
                return replace(wanted, dtype=dtype)
        return Layout(shape, contiguous_strides(shape), dtype, self.device)

    def compute(
        self,
        formula: Formula,
        *operands: Operand,
        shape: Shape | None = None,
        dtype: str,
        within: str | None = None,
        meet: str | None = None,
        exact: bool = False,
    ) -> Tensor:
        """`formula` of the operands' elements, computed in `within` (dtype's own compute type), stored as dtype.

        Before that, operands are rounded to the type in which they `meet`, if one is given (ATen casts the operands of
        a pointwise operator to their common type), the last one only if it is a tensor with dimensions where `exact`
        is given: that is how ATen multiplies and divides by a number.
        """
        if shape is None:
            shape = broadcast_shape([o.shape for o in operands if isinstance(o, Tensor)])
        inner = compute_type(meet or dtype) if within is None else within
        where = point(shape)
        types = [meet for _ in operands]
        if exact and not (isinstance(operands[-1], Tensor) and operands[-1].shape):
            types[-1] = None
        elements = [element(o, where, shape, inner, at) for o, at in zip(operands, types, strict=True)]
        body = formula(*elements)
        return self.elementwise(shape, cast(body, dtype))

    def reduce(self, kind: str, tensor: Tensor, dims: Sequence[int], keepdim: bool, dtype: str) -> Tensor:
        """Reduce over `dims`; elements are first cast to `dtype`, which is also the type of the result."""
        return self.reduce_formula(kind, lambda x: x, (tensor,), tensor.shape, dims, keepdim, dtype)

    def reduce_formula(
        self,
        kind: str,
        formula: Formula,
        operands: Sequence[Operand],
        shape: Shape,
        dims: Sequence[int],
        keepdim: bool,
        dtype: str,
    ) -> Tensor:
        """Reduce `formula` of the operands (broadcast to `shape`) over `dims`."""
        over = {d % len(shape) for d in dims} if dims and shape else set(range(len(shape)))
        _decline_type(REDUCTIONS[kind], dtype, "accumulated")
        if any(shape[k] == 0 for k in over):
            raise Decline("a reduction over no elements")
        if kind in ("max", "min") and not all(surely_positive(shape[k]) for k in over):
            raise Decline(f"{kind} over what may have no elements")
        where, axes = point(shape), axes_of(shape)
        body = cast(formula(*(element(o, where, shape, dtype) for o in operands)), dtype)
        reduced = frozenset(v for k, v in enumerate(axes) if k in over and v is not None)
        if kind == "sum" and not reduced and is_float(dtype):
            body = body + 0.0  # sums begin at zero: that of one negative zero is none
        kept = [k for k in range(len(shape)) if keepdim or k not in over]
        layout = self.layout_for(tuple(1 if k in over else shape[k] for k in kept), dtype)
        slots = tuple(None if k in over else axes[k] for k in kept)
        return self.define(layout, _loops(shape), slots, body, kind if reduced else None, reduced)

    def scan(self, kind: str, x: Tensor, dim: int, dtype: str) -> Tensor:
        """At each point `x` as `dtype`, combined along the dimension up to it."""
        _decline_type(SCANS[kind], dtype, "scanned")
        value = cast(x.at(point(x.shape)), dtype)
        scanned = axes_of(x.shape)[dim] if x.shape else None
        if scanned is None:
            return self.elementwise(x.shape, value)
        if not self.target.scans_rows:
            row, kind = SCANS[kind], STEPS
            step = Op(row.combine, Carried(0, dtype), value)
            value = Recurrence((Const(row.start(dtype), dtype),), (step,), 0, True, dtype)
        return self.scanned(self.elementwise(x.shape, value), kind, scanned)

    def scanned(self, made: Tensor, kind: str, along: Var, reverse: bool = False) -> Tensor:
        """The definition of the tensor as a scan along one of its variables."""
        d = self.program.defs[made.source]
        self.program.defs[made.source] = replace(d, scan=kind, scanned=along, reverse=reverse)
        if not self.target.scans_rows:
            self.program.column_scans.add(made.source)
        return made


def as_stored(value: Expr, dtype: str) -> Expr:
    """The value as it is read again where it has been stored in a type, that of half precision above all."""
    return cast(cast(value, dtype), value.dtype)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    if any(isinstance(size, Sym) for shape in shapes for size in shape):
        return tuple(reversed([_common(sizes) for sizes in zip_longest(*map(reversed, shapes), fillvalue=1)]))
    return tuple(torch.broadcast_shapes(*shapes)) if shapes else ()  # type: ignore[no-untyped-call]


def _common(sizes: Sequence[Size]) -> Size:
    different = dict.fromkeys(size for size in sizes if size != 1)
    if len(different) > 1:
        raise Undecided(f"whether {' is '.join(map(str, different))}")
    return next(iter(different), 1)


def float_of(dtype: str) -> str:
    """The type a floating point function of this type returns: itself, or the default type for the others."""
    return dtype if is_float(dtype) else FROM_TORCH[torch.get_default_dtype()]


def promoted(*operands: Operand) -> str:
    """The common type of tensors, zero-dimensional tensors and Python numbers, as `torch.result_type` has it."""
    groups: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            rank, dtype = (0 if operand.shape else 1), DTYPES[operand.dtype].torch
        elif isinstance(operand, bool):
            rank, dtype = 2, torch.bool
        elif isinstance(operand, (int, Sym)):
            rank, dtype = 2, torch.int64
        else:
            rank, dtype = 2, torch.get_default_dtype()
        groups[rank] = dtype if groups[rank] is None else torch.promote_types(groups[rank], dtype)  # type: ignore[arg-type]
    found = _combined(groups[0], _combined(groups[1], groups[2]))
    if found is None or found not in FROM_TORCH:
        raise Decline(f"operands of type {found}")
    return FROM_TORCH[found]


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def _loops(shape: Shape) -> tuple[Var, ...]:
    return tuple(axis(k, size) for k, size in enumerate(shape) if size != 1)


def _decline_type(row: ReductionRow, dtype: str, how: str) -> None:
    """Declines reductions and scans of a type, where they are not computed in it."""
    kind = DTYPES[dtype].kind
    if ("i" if kind == "u" else kind) not in row.kinds or DTYPES[dtype].compute != dtype:
        raise Decline(f"{row.name} {how} in {dtype}")


def _serial(loops: Sequence[Var], where: Sequence[Ix]) -> list[Var]:
    """The loops whose points are added one after another."""
    indexed = {v for v in loops if index.of(v) in where}
    if set(loops) - {v for ix in where for v in index.variables(ix)}:
        raise Decline("indices that are the same along a dimension")
    return [v for v in loops if v not in indexed]


def _decline_in_no_order(dtype: str, repeatable: bool) -> None:
    """Declines sums that threads may not add up as they come: memory adds whole words, and rounding shows the order."""
    if dtype not in ("i32", "i64", "f32", "f64"):
        raise Decline(f"additions of {dtype} by threads in no order")
    if DTYPES[dtype].kind == "f" and (repeatable or torch.are_deterministic_algorithms_enabled()):
        raise Decline("additions that are to round the same each time, by threads in no order")
