"""Canonical forms of expressions and kernels, without the names of buffers: equal ones have equal code."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from framesmith_backends.ir.expr import Cast, Expr, Index, Load, Op, Recurrence, Ref, children, walk
from framesmith_backends.ir.kernel import Accumulate, Kernel, RowPass, Scan, Store
from framesmith_backends.ir.symbolic import index


class Numbering:
    """Names as numbers, in the order in which they are met."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def form_of(roots: Sequence[Expr], number: Numbering) -> Hashable | None:
    """Return the expressions over numbered buffers and reductions; None with indirect indices.

    Those hold names of buffers.
    """
    at: dict[Expr, int] = {}
    parts: list[object] = []
    for node in walk(*roots):
        at[node] = len(parts)
        kind = type(node)
        if kind is Op:  # whose type follows from its name and operands
            parts.append((node.name, *[at[part] for part in node.args]))  # type: ignore[union-attr]
        elif isinstance(node, Load):
            if len(children(node)) > (node.guard is not None):
                return None
            guard = -1 if node.guard is None else at[node.guard]
            parts.append((number(node.source), guard, node.dtype, node.index))
        elif isinstance(node, Cast):
            parts.append((Cast, node.dtype, at[node.value]))
        elif isinstance(node, Ref):
            parts.append((Ref, node.dtype, number(node.name)))
        elif isinstance(node, Recurrence):
            parts.append((Recurrence, node.which, node.after, len(node.starts), *[at[part] for part in children(node)]))
        elif isinstance(node, Index) and children(node):
            return None
        else:
            parts.append(node)
    return (*parts, *[at[root] for root in roots])


def kernel_form(kernel: Kernel) -> Hashable | None:
    """Return the kernel over its parameters numbered in their order; None with indirect indices."""
    if any(index.indirect_atoms(store.index) for store in kernel.stores):
        return None
    number = Numbering()
    params = [(number(param.name), param.dtype, param.written) for param in kernel.params]
    scratch = [(number(one.name), one.dtype, one.numel) for one in kernel.scratch]
    values = form_of([value for one in kernel.passes for value in one.values], number)
    if values is None:
        return None
    after = form_of([store.value for store in kernel.after], number)
    passes = [_pass_form(one, number) for one in kernel.passes]
    stores = [_store_form(store, number) for store in kernel.after]
    loops = kernel.outer, kernel.row, kernel.lane, kernel.down, kernel.numbers
    return (*params, None, *scratch, None, values, after, *passes, None, *stores, loops)


def _pass_form(one: RowPass, number: Numbering) -> Hashable:
    """Return the pass without its values, which `kernel_form` has in their order."""

    def combined(found: Accumulate | Scan) -> Hashable:
        return (
            number(found.name),
            found.kind,
            (found.reverse, found.start is None) if isinstance(found, Scan) else None,
        )

    return (
        tuple(_store_form(store, number) for store in one.before),
        tuple(map(combined, one.reductions)),
        tuple(_store_form(store, number) for store in one.stores),
        tuple(check.failure for check in one.checks),
        tuple(map(combined, one.columns)),
        tuple(map(combined, one.scans)),
    )


def _store_form(store: Store, number: Numbering) -> Hashable:
    return (number(store.buffer), store.index)
