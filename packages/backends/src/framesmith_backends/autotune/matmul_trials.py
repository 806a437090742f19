"""Trials of a matmul's candidates: ATen's call with the kernel behind it, and one kernel for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_backends.autotune.trials import ANY_INTEGERS, BEFORE, Buffers, Experiment, ints, span
from framesmith_backends.ir.fused.matmul import TileShape
from framesmith_backends.ir.matmul import Item, OnGpu
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.launch.cuda.kernel_runs import alone, rendered
from framesmith_backends.render.triton.horizontal import Launch
from framesmith_backends.schedule.matmuls.epilogues import Fusable
from framesmith_backends.schedule.matmuls.operators import view_of

#: The limit for all candidates of a matmul.
SECONDS = 1.5


def experiment_of(one: Fusable, tiles: Sequence[TileShape], program: Program, present: str) -> Experiment:
    """The matmul in the present candidate and in these tiles."""
    layouts = _layouts(one, tiles, program)
    candidates: dict[str, Sequence[Item]] = {}
    if one.kernel is not None:
        candidates[present] = (one.kernel,)
    if one.before():
        candidates[BEFORE] = one.before()
    candidates |= {tile.text(): (*one.before(tile), *one.items(tile)) for tile in tiles}
    written = tuple(param.name for param in one.matmul.params if param.written)
    # Integers of 8 bits are weights, 0 or 1; where they are indices, these are checked.
    weights = {name: 2 for name, layout in layouts.items() if layout.dtype in ("i8", "u8")}
    return Experiment(
        {name: (items, _launches(items)) for name, items in candidates.items()},
        layouts,
        written,
        frozenset(name for name in layouts if name in program.inputs),
        SECONDS,
        _call(one, program),
        one.call.name,
        {**weights, **dict.fromkeys(written, ANY_INTEGERS)},
    )


def _launches(items: Sequence[Item]) -> list[Launch]:
    return [alone(item, rendered(item)) for item in items if isinstance(item, OnGpu)]


def _call(one: Fusable, program: Program) -> Callable[[Buffers], torch.Tensor]:
    """The ATen call on buffers."""
    node = one.call.node
    known = {id(arg): view_of(program, arg) for arg in node.all_input_nodes}
    target: Any = node.target

    def call(buffers: Buffers) -> torch.Tensor:
        def tensor(arg: fx.Node) -> torch.Tensor:
            place = known[id(arg)]
            assert place is not None
            (offset,) = ints((place.offset,))
            return buffers[place.source].as_strided(ints(place.shape), ints(place.strides), offset)

        result: torch.Tensor = target(*fx.node.map_arg(node.args, tensor), **node.kwargs)
        return result

    return call


def _layouts(one: Fusable, tiles: Sequence[TileShape], program: Program) -> dict[str, Layout]:
    """Those of all buffers that any form has."""
    kernels = (*one.before(), *([one.kernel] if one.kernel is not None else []))
    params = [*one.matmul.params, *(param for kernel in kernels for param in kernel.params)]
    found = {param.name: program.layouts[param.name] for param in params if param.name != one.call.name}
    found[one.call.name] = program.layouts[one.call.name]
    for tile in tiles:
        added = one.added(tile, found[one.call.name].device)
        for name, layout in added.items():
            if name not in found or span(layout) > span(found[name]):
                found[name] = layout
    for node in one.call.node.all_input_nodes:
        place = view_of(program, node)
        if place is None:
            raise RuntimeError("an operand whose place is not known")
        found.setdefault(place.source, program.layouts[place.source])
    return found
