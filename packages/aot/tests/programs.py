"""Random small programs over views, in-place mutations and arithmetic, as torch-level graphs."""

from __future__ import annotations

import operator
import random

import torch
from torch import fx

#: (name, how to call it on one tensor); each gives a tensor, or changes its operand in place.
VIEWS = {
    "t": lambda g, v, r: g.call_method("transpose", (v, 0, -1)),
    "flat": lambda g, v, r: g.call_method("view", (v, -1)),
    "reshape": lambda g, v, r: g.call_method("reshape", (v, 2, -1)),
    "select": lambda g, v, r: g.call_method("select", (v, 0, r.randrange(2))),
    "slice": lambda g, v, r: g.call_function(operator.getitem, (v, slice(r.randrange(2), None))),
    "last": lambda g, v, r: g.call_function(operator.getitem, (v, (Ellipsis, r.randrange(2)))),
    "unsqueeze": lambda g, v, r: g.call_method("unsqueeze", (v, 0)),
    "split": lambda g, v, r: g.call_function(operator.getitem, (g.call_method("chunk", (v, 2, -1)), r.randrange(2))),
    "detach": lambda g, v, r: g.call_method("detach", (v,)),
    "diagonal": lambda g, v, r: g.call_method("diagonal", (v,)),
    "expand": lambda g, v, r: g.call_method("expand", (g.call_method("unsqueeze", (v, 0)), 2, *[-1] * 2)),
}
IN_PLACE = {
    # The operand is copied: adding a view of itself to a tensor has no defined result in eager mode.
    "add_": lambda g, v, w, r: g.call_method("add_", (v, g.call_method("clone", (w,)))),
    "add1_": lambda g, v, w, r: g.call_method("add_", (v, r.choice([1, 0.5]))),
    "mul_": lambda g, v, w, r: g.call_method("mul_", (v, 2)),
    "copy_": lambda g, v, w, r: g.call_method("copy_", (v, g.call_method("clone", (w,)))),
    "zero_": lambda g, v, w, r: g.call_method("zero_", (v,)),
    "relu_": lambda g, v, w, r: g.call_function(torch.relu_, (v,)),
    "setitem": lambda g, v, w, r: g.call_function(operator.setitem, (v, r.randrange(2), r.choice([0.0, 1.5]))),
}
MATH = {
    "add": lambda g, v, w, r: g.call_function(torch.add, (v, w)),
    "mul": lambda g, v, w, r: g.call_function(operator.mul, (v, w)),
    "sin": lambda g, v, w, r: g.call_function(torch.sin, (v,)),
    "sum": lambda g, v, w, r: g.call_method("sum", (v, 0)),
    "softmax": lambda g, v, w, r: g.call_function(torch.softmax, (v, -1)),
    "clone": lambda g, v, w, r: g.call_method("clone", (v,)),
    "contiguous": lambda g, v, w, r: g.call_method("contiguous", (v,)),
    "where": lambda g, v, w, r: g.call_function(torch.where, (g.call_function(operator.gt, (v, 0)), v, w)),
    "matmul": lambda g, v, w, r: g.call_function(torch.matmul, (v, g.call_method("transpose", (w, 0, -1)))),
    "cat": lambda g, v, w, r: g.call_function(torch.cat, ((v, w),)),
    "ones": lambda g, v, w, r: g.call_function(torch.ones_like, (v,)),
}


def program(seed: int, size: int = 4):
    """(graph, example inputs): 2 to 4 inputs, 3 to 12 calls, 1 to 4 outputs, some of them inputs.

    The graph is the same for every `size` of the inputs, but not valid for each.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shapes = [(size, size), (size, size), (size,), (2, size)]
    inputs = []
    for shape in shapes[: rng.randrange(2, 5)]:
        value = torch.randn(shape)
        if rng.random() < 0.2 and len(shape) == 2:
            value = value.t().contiguous().t()
        inputs.append(value.requires_grad_(rng.random() < 0.5))
    graph = fx.Graph()
    values = [graph.placeholder(f"x{at}") for at in range(len(inputs))]
    for _ in range(rng.randrange(3, 13)):
        v, w = rng.choice(values), rng.choice(values)
        kind = rng.random()
        if kind < 0.35:
            values.append(rng.choice(list(VIEWS.values()))(graph, v, rng))
        elif kind < 0.55:
            rng.choice(list(IN_PLACE.values()))(graph, v, w, rng)
        else:
            values.append(rng.choice(list(MATH.values()))(graph, v, w, rng))
    outputs = [rng.choice(values) for _ in range(rng.randrange(1, 4))] + [values[-1]]
    graph.output(tuple(outputs))
    return fx.GraphModule({}, graph), inputs
