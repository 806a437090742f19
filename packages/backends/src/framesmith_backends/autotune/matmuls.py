"""Trials of matmuls: ATen's call with the kernel behind it, and one kernel for both, in several tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from framesmith_backends.autotune.autotuner import key_of
from framesmith_backends.autotune.trials import ANY_INTEGERS, BEFORE, Buffers, Experiment, Tuner, ints, span
from framesmith_backends.ir.fused.matmul import TileShape
from framesmith_backends.ir.matmul import Item, OnGpu
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.launch.cuda.kernel_runs import rendered
from framesmith_backends.launch.cuda.support_source import support_digest
from framesmith_backends.render.triton.fused.matmul import render_matmul
from framesmith_backends.render.triton.fused.matmul_tiles import candidates
from framesmith_backends.render.triton.horizontal import alone
from framesmith_backends.render.triton.kernel import render_triton
from framesmith_backends.schedule.matmuls.epilogues import Fusable
from framesmith_backends.schedule.matmuls.operators import view_of
from framesmith_backends.target import GPU_CAPABILITY, GPU_PROCESSORS

#: The baseline's name.
BASELINE = "ATen"
#: So many tiles of matmuls that nothing is fused with are measured: cuBLAS is rarely slower.
MOST_ALONE = 3
#: The limit for all candidates of a matmul.
SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class MatmulTrial:
    """A matmul, and the tiles in which it is timed beside the baseline."""

    fusable: Fusable
    tiles: tuple[TileShape, ...]
    baseline: ClassVar[str] = BASELINE

    @property
    def name(self) -> str:
        return self.fusable.call.name

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(tile.text() for tile in self.tiles)

    @property
    def head(self) -> str:
        """The call, and what is fused with it: operands that may be computed on the way in by their names in tiles."""
        one = self.fusable
        parts = [str(one.call.node.target), *(["its kernel"] if one.kernel is not None else [])]
        operands = [name for name, own in zip("ab", one.prologues, strict=True) if own is not None]
        parts += [f"what computes {', '.join(operands)}"] if operands else []
        return f"{self.name}: {' and '.join(parts)}"

    def chosen(self, which: int) -> dict[str, TileShape]:
        return {self.name: self.tiles[which]}

    def key(self, program: Program, about: tuple[object, ...]) -> str:
        one = self.fusable
        matmul = one.matmul
        computed = [one.in_tiles(replace(matmul.tile, computed=way)) for way in one.ways[1:]]
        before = [render_triton(kernel, "kernel") for kernel in one.before()]
        texts = [render_matmul(form, "kernel") for form in (matmul, *computed)] + before
        items: list[OnGpu] = [matmul, *computed, *one.before()]
        names = dict.fromkeys(param.name for item in items for param in item.params)
        layouts = program.layouts
        buffers = [(layouts[name].shape, layouts[name].strides, name in program.inputs) for name in names]
        after = None if one.kernel is None else render_triton(one.kernel, "kernel")
        baseline = (str(one.call.node.target), after and (after.source, after.grid, after.pointers, after.warps))
        parts = tuple((one.source, one.pointers, one.grid, one.warps) for one in texts)
        return key_of(parts, baseline, buffers, self.others, about, support_digest())

    def experiment(self, program: Program) -> Experiment:
        one = self.fusable
        layouts = _layouts(one, self.tiles, program)
        found: dict[str, Sequence[Item]] = {}
        if one.kernel is not None:
            found[BASELINE] = (one.kernel,)
        if one.before():
            found[BEFORE] = one.before()
        found |= {tile.text(): (*one.before(tile), *one.items(tile)) for tile in self.tiles}
        written = tuple(param.name for param in one.matmul.params if param.written)
        # Integers of 8 bits are weights, 0 or 1; where they are indices, these are checked.
        weights = {name: 2 for name, layout in layouts.items() if layout.dtype in ("i8", "u8")}
        return Experiment(
            {
                name: (items, [alone(item, rendered(item)) for item in items if isinstance(item, OnGpu)])
                for name, items in found.items()
            },
            layouts,
            written,
            frozenset(name for name in layouts if name in program.inputs),
            SECONDS,
            _call(one, program),
            one.call.name,
            {**weights, **dict.fromkeys(written, ANY_INTEGERS)},
        )


@dataclass(slots=True)
class MatmulTuner(Tuner[Fusable, TileShape]):
    """Chooses tiles of matmuls that run as one kernel with what follows; with `exact` those of float32 are ATen's."""

    WHAT = "matmuls by other candidates than ATen's"

    exact: bool = True

    def trials(self, found: Sequence[Fusable], program: Program) -> list[MatmulTrial]:
        mine = [one for one in found if not (self.exact and one.matmul.dtype == "f32")]
        return [trial for one in mine if (trial := MatmulTrial(one, tuple(self._tiles(one)))).tiles]

    def _tiles(self, one: Fusable) -> list[TileShape]:
        capability = GPU_CAPABILITY if self.clock is None else self.clock.capability
        processors = GPU_PROCESSORS if self.clock is None else self.clock.processors
        found: list[TileShape] = []
        for way in one.ways:
            some = candidates(one.in_tiles(replace(one.matmul.tile, computed=way)), capability, processors)
            found += some if one.kernel is not None else some[:MOST_ALONE]
        return found


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
