"""Compares a graph run eagerly with the same graph compiled: values, layout, aliases, mutations, gradients."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith_aot import CompiledGraph, compile_graph
from framesmith_aten.graphs.verify import verify
from framesmith_aten.layouts import is_dense


class Recording:
    """A compiler that runs the graphs it is given with torch, and records them by role."""

    def __init__(self) -> None:
        self.graphs: dict[str, list[fx.GraphModule]] = {"inference": [], "forward": [], "backward": []}

    def __call__(self, gm, inputs, role):
        verify(gm.graph)
        vals = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
        assert len(vals) == len(inputs)
        self.graphs[role].append(gm)
        expected = [node.meta["val"] for node in next(iter(reversed(gm.graph.nodes))).args[0]]

        def run(args):
            own = list(args)
            args.clear()
            results = gm(*own)
            if role != "backward":
                for result, val in zip(results, expected, strict=True):
                    check_result(result, val, gm)
            return results

        return run


def check_result(result, val, gm):
    """Check a graph's result against its metadata, where that is not symbolic."""
    if not isinstance(result, torch.Tensor):
        assert type(result) is {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(val)]
        return
    assert result.dtype == val.dtype and result.dim() == val.dim()
    if val._has_symbolic_sizes_strides:
        assert not is_dense(val.shape, val.stride()) or is_dense(result.shape, result.stride()), gm.code
        return
    assert result.shape == val.shape
    assert strides(result) == strides(val), (result.stride(), val.stride(), gm.code)


def compiled(gm: fx.GraphModule, inputs: Any, **options: Any) -> CompiledGraph:
    return compile_graph(gm, inputs, compiler=Recording(), **options)


def graph_of(fn: Any) -> fx.GraphModule:
    """Return the torch-level graph of a function of tensors, with a tuple as its output."""
    gm = fx.symbolic_trace(fn)
    output = next(iter(reversed(gm.graph.nodes)))
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
        gm.recompile()
    return gm


def of(fn: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    return compiled(graph_of(fn), list(inputs))


def pair() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def fresh(inputs: Any, history: bool = False) -> list[torch.Tensor]:
    """Return copies with the same layout; with `history`, those that require gradients are no leaves."""
    copies = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            copies.append(value)
            continue
        copy = value.detach().clone()
        if copy.stride() != value.stride():
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.detach())
        copy.requires_grad_(value.requires_grad)
        copies.append(copy)
    return [c.clone() if history and c.requires_grad else c for c in copies] if history else copies


def run_both(gm, inputs, *, history=False, seed=0, backward=True, calls=2, inference=False, **options):
    """Run eager and compiled `calls` times, compare all that a user sees, return the compiled graph."""
    with torch.inference_mode() if inference else contextlib.nullcontext():
        return _run_both(gm, inputs, history, seed, backward and not inference, calls, options)


def _run_both(gm, inputs, history, seed, backward, calls, options):
    graph = compiled(gm, fresh(inputs, history), **options)
    for call in range(calls):
        sides = []
        for function in (gm, graph):
            torch.manual_seed(seed + call)
            leaves = fresh(inputs)
            args = [leaf.clone() if history and leaf.requires_grad else leaf for leaf in leaves]
            sides.append((leaves, args, list(function(*args)), torch.get_rng_state()))
        compare(sides)
        if backward:
            compare_gradients(sides)
    return graph


def compare(sides):
    (_, args, outs, state), (_, args2, outs2, state2) = sides
    assert torch.equal(state, state2), "the random generator advanced differently"
    assert len(outs) == len(outs2)
    for at, (one, two) in enumerate(zip(outs, outs2)):
        if not isinstance(one, torch.Tensor):
            assert one == two and type(one) is type(two)
            continue
        assert same_tensor(one, two), f"output {at}: {describe(one)} and {describe(two)}"
        torch.testing.assert_close(one.detach(), two.detach(), equal_nan=True, msg=lambda m: f"output {at}: {m}")
        assert [one is arg for arg in args] == [two is arg for arg in args2], f"identity of output {at}"
    for at, (one, two) in enumerate(zip(args, args2)):
        if not isinstance(one, torch.Tensor):
            continue
        torch.testing.assert_close(one.detach(), two.detach(), equal_nan=True, msg=lambda m: f"input {at}: {m}")
        assert same_tensor(one, two), f"input {at}"
        assert one.is_inference() or (one._version > 0) == (two._version > 0), f"version counter of input {at}"
    assert sharing([*args, *outs]) == sharing([*args2, *outs2]), "tensors share memory differently"


def same_tensor(one, two):
    return layout(one) == layout(two) and (one.dtype, one.requires_grad) == (two.dtype, two.requires_grad)


def layout(value):
    return value.shape, strides(value), value.storage_offset() if value.numel() else 0


def strides(value):
    """Return strides where they matter: torch's fake kernels differ along dimensions of one element."""
    return [stride for stride, size in zip(value.stride(), value.shape) if size != 1]


def describe(value):
    where = f"{tuple(value.shape)} {value.stride()} at {value.storage_offset()}"
    return f"{value.dtype} {where} requires_grad={value.requires_grad}"


def sharing(values):
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    storages = [t.untyped_storage().data_ptr() if t.numel() else id(t) for t in tensors]
    return [a == b for a, b in itertools.combinations(storages, 2)]


def compare_gradients(sides, seed=7):
    results = []
    for leaves, _args, outs, _ in sides:
        torch.manual_seed(seed)
        roots = [o for o in outs if isinstance(o, torch.Tensor) and o.grad_fn is not None]
        unique = list({id(o): o for o in roots}.values())
        wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf]
        if not unique or not wanted:
            return
        seeds = [torch.randn_like(o) for o in unique]
        results.append(torch.autograd.grad(unique, wanted, seeds, allow_unused=True))
    for at, (one, two) in enumerate(zip(*results)):
        assert (one is None) == (two is None), f"gradient {at}: {one is None} and {two is None}"
        if one is not None:
            torch.testing.assert_close(one, two, equal_nan=True, msg=lambda m: f"gradient {at}: {m}")
