"""Examples with symbolic sizes, and graphs compiled for them, compared with eager mode at other sizes."""

from __future__ import annotations

import torch
from harness import Recording, compare, compare_gradients, fresh
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aot import compile_graph
from framesmith_aten.fakes import new_fake_mode
from framesmith_guards import LocalSource
from framesmith_guards.symbolic_guards import to_torch


class Examples:
    """Fake tensors and symbolic numbers of one ShapeEnv."""

    def __init__(self):
        self.env = ShapeEnv()
        self.mode = new_fake_mode(self.env)
        self.count = 0

    def source(self):
        self.count += 1
        return to_torch(LocalSource(f"x{self.count}"))

    def tensor(self, value, dynamic=None):
        """Return a fake like `value`, with symbols for the sizes of these dimensions (None: all)."""
        if type(value) in (int, float):
            return self.number(value)
        dynamic = range(value.dim()) if dynamic is None else dynamic
        kinds = [DimDynamic.DYNAMIC if dim in dynamic else DimDynamic.STATIC for dim in range(value.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=kinds)
        return self.mode.from_tensor(value, source=self.source(), symbolic_context=context)

    def number(self, value):
        source = self.source()
        symbol = self.env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        make = self.env.create_symfloatnode if isinstance(value, float) else self.env.create_symintnode
        return make(symbol, hint=value, source=source)


def compile_symbolic(gm, values, dynamic=None, **options):
    """Return the compiled graph and the ShapeEnv for inputs like `values`; `dynamic` holds the dimensions of each."""
    examples = Examples()
    dynamic = dynamic or [None] * len(values)
    fakes = [examples.tensor(value, dims) for value, dims in zip(values, dynamic, strict=True)]
    recording = Recording()
    graph = compile_graph(gm, fakes, compiler=recording, **options)
    graph.recording, graph.env, graph.fakes = recording, examples.env, fakes
    return graph


def check(graph, gm, values, *, history=False, backward=True, seed=0):
    """Make one call with `values`, compared with eager mode in all that a user sees."""
    sides = []
    for function in (gm, graph):
        torch.manual_seed(seed)
        leaves = fresh(values)
        args = [x.clone() if history and isinstance(x, torch.Tensor) and x.requires_grad else x for x in leaves]
        sides.append((leaves, args, list(function(*args)), torch.get_rng_state()))
    compare(sides)
    if backward:
        compare_gradients(sides)


def guards_hold(graph, values):
    """Whether the ShapeEnv's guards allow a call with `values`."""
    known = {}
    for fake, value in zip(graph.fakes, values, strict=True):
        pairs = zip(fake.shape, value.shape, strict=True) if isinstance(value, torch.Tensor) else [(fake, value)]
        for number, size in pairs:
            if not isinstance(number, int):
                known.setdefault(number.node._expr, size)
    ranges = graph.env.var_to_range
    if not all(ranges[one].lower <= size <= ranges[one].upper for one, size in known.items() if one in ranges):
        return False
    same = [one for one in known if not graph.env.replace(one).subs(known) == known[one]]
    return not same and all(bool(guard.expr.subs(known)) for guard in graph.env.guards)
