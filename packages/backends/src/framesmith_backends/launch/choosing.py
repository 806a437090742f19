"""In which form products run: the fastest of those that were timed, once for equal products, and kept on disk.

What times them is a `Clock`. The present form is an ATen call and, where there is one, the kernel that reads it. It
stays where nothing is faster by a margin, where nothing could be timed, and while a CUDA graph is recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from framesmith_aten.contract import OnError
from framesmith_backends import storage
from framesmith_backends.ir.fused_product import TileShape
from framesmith_backends.ir.product import OnGpu
from framesmith_backends.ir.program import Program
from framesmith_backends.launch.support_source import support_digest
from framesmith_backends.render.triton.kernel import render_triton
from framesmith_backends.render.triton.product import render_product
from framesmith_backends.render.triton.product_tiles import candidates
from framesmith_backends.schedule.fused_products import Fusable
from framesmith_backends.telling import PLANS

#: The name of the present form, and by how much another has to be faster.
PRESENT, MARGIN = "ATen", 0.98
#: So many tiles of products that nothing is fused with are measured: cuBLAS is rarely slower.
MOST_ALONE = 3
#: Of what is written to disk.
FORMAT = 1
#: Processors and compute capability of the GPU that is taken where there is none.
PROCESSORS, CAPABILITY = 132, 90

Times = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A product, and the tiles in which it is timed beside the present form."""

    fusable: Fusable
    tiles: tuple[TileShape, ...]


class Clock(Protocol):
    """What times products. `about` names the device and what compiles for it: times are good for that alone."""

    @property
    def about(self) -> tuple[object, ...]: ...

    @property
    def capability(self) -> int: ...

    @property
    def processors(self) -> int: ...

    def is_free(self) -> bool:
        """Whether anything may be launched now."""

    def times(self, trials: Sequence[Trial], program: Program) -> list[Times | Exception]:
        """Seconds of each trial's forms that run, by their names; or what kept it from being timed."""


@dataclass(slots=True)
class Choices:
    """Chooses for the products of a graph, and can tell of it; without a `clock` the present form.

    What cannot be timed keeps its present form, and `on_error` is told; without it, the error is raised.
    """

    clock: Clock | None = None
    exact: bool = True
    on_error: OnError | None = None
    told: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, found: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
        try:
            return self._chosen(found, program)
        except Exception as error:  # the present form is as good as ever
            self._failed(error)
            return {}

    def _chosen(self, found: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
        mine = [one for one in found if not (self.exact and one.product.dtype == "f32")]
        trials = [trial for one in mine if (trial := Trial(one, tuple(self._tiles(one)))).tiles]
        if self.clock is None or not trials or not self.clock.is_free():
            for trial in trials:
                self._tell(trial, {}, None)
            return {}
        keys = [key_of(trial, program, self.clock.about) for trial in trials]
        known = _kept(keys, trials)
        fresh = {key: trial for key, trial in zip(keys, trials, strict=True) if key not in known}
        if fresh:
            known |= self._timed(self.clock, fresh, program)
        chosen: dict[str, TileShape] = {}
        for key, trial in zip(keys, trials, strict=True):
            tile = fastest(known.get(key, {}), trial.tiles)
            self._tell(trial, known.get(key, {}), tile)
            if tile is not None:
                chosen[trial.fusable.call.name] = tile
        return chosen

    def _tiles(self, one: Fusable) -> list[TileShape]:
        capability = CAPABILITY if self.clock is None else self.clock.capability
        processors = PROCESSORS if self.clock is None else self.clock.processors
        found: list[TileShape] = []
        for way in one.ways:
            some = candidates(one.in_tiles(replace(one.product.tile, computed=way)), capability, processors)
            found += some if one.kernel is not None else some[:MOST_ALONE]
        return found

    def _timed(self, clock: Clock, fresh: Mapping[str, Trial], program: Program) -> dict[str, Times]:
        """What the clock tells of each, kept on disk."""
        found: dict[str, Times] = {}
        for (key, trial), times in zip(fresh.items(), clock.times([*fresh.values()], program), strict=True):
            if isinstance(times, Exception):
                PLANS.info("%s was not timed: %s", trial.fusable.call.name, times)
                self._failed(times)
            else:
                found[key] = times
                storage.write(_file(key), json.dumps({"format": FORMAT, "times": dict(times)}).encode())
        return found

    def _failed(self, error: Exception) -> None:
        if self.on_error is None:
            raise error
        self.on_error("products in other forms than ATen's", error)

    def _tell(self, trial: Trial, times: Times, chosen: TileShape | None) -> None:
        one = trial.fusable
        parts = [str(one.call.node.target), *(["its kernel"] if one.kernel is not None else [])]
        parts += [f"what computes {', '.join(operands)}"] if (operands := _computable(one)) else []
        lines = [f"{one.call.name}: {' and '.join(parts)}"]
        if not times:
            lines.append(f"  unmeasured: {PRESENT}; to be measured: {'; '.join(tile.text() for tile in trial.tiles)}")
        best = PRESENT if chosen is None else chosen.text()
        for name, seconds in sorted(times.items(), key=lambda pair: pair[1]):
            lines.append(f"  {name}: {1e6 * seconds:.2f} us{', chosen' if name == best else ''}")
        self.told[one.call.name] = lines

    def text(self) -> str:
        """What was chosen among, with the times."""
        return "\n".join(line for lines in self.told.values() for line in lines)


def _computable(one: Fusable) -> list[str]:
    """The operands that may be computed on the way in, by what they are called in the names of tiles."""
    return [name for name, own in zip("ab", one.prologues, strict=True) if own is not None]


def fastest(times: Times, tiles: Sequence[TileShape]) -> TileShape | None:
    """The tile that is faster than the present form by the margin, or None."""
    if PRESENT not in times:
        return None
    mine = {tile: times[tile.text()] for tile in tiles if tile.text() in times}
    best = min(mine, key=lambda tile: mine[tile], default=None)
    return best if best is not None and mine[best] < MARGIN * times[PRESENT] else None


def key_of(trial: Trial, program: Program, about: tuple[object, ...]) -> str:
    """What the times depend on, as a digest: equal for products that are alike but for names."""
    one = trial.fusable
    product = one.product
    computed = [one.in_tiles(replace(product.tile, computed=way)) for way in one.ways[1:]]
    before = [render_triton(kernel, "kernel") for kernel in one.before()]
    forms = [render_product(form, "kernel") for form in (product, *computed)] + before
    items: list[OnGpu] = [product, *computed, *one.before()]
    names = dict.fromkeys(param.name for item in items for param in item.params)
    buffers = [(program.layouts[name].shape, program.layouts[name].strides, name in program.inputs) for name in names]
    texts = tuple((form.source, form.pointers, form.grid, form.warps) for form in forms)
    after = None if one.kernel is None else render_triton(one.kernel, "kernel")
    present = (str(one.call.node.target), after and (after.source, after.grid, after.pointers, after.warps))
    tiles = tuple(tile.text() for tile in trial.tiles)
    parts = (FORMAT, texts, present, buffers, tiles, about, support_digest())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _file(key: str) -> str:
    return f"choice-{key}.json"


def _kept(keys: Sequence[str], trials: Sequence[Trial]) -> dict[str, Times]:
    """The times that the cache folder has; what does not fit is timed again."""
    found: dict[str, Times] = {}
    for key, trial in zip(keys, trials, strict=True):
        times = None if key in found else _read(key)
        if times is not None and times.keys() <= {PRESENT, *(tile.text() for tile in trial.tiles)}:
            found[key] = times
    return found


def _read(key: str) -> dict[str, float] | None:
    content = storage.read(_file(key))
    if content is None:
        return None
    try:
        known: Any = json.loads(content)
    except ValueError:
        return None
    times = known.get("times") if isinstance(known, dict) and known.get("format") == FORMAT else None
    if not isinstance(times, dict) or PRESENT not in times:
        return None
    return times if all(isinstance(value, float) and value > 0 for value in times.values()) else None
