"""torch's own samples of every higher-order operator (`torch.testing._internal.hop_db`), against eager mode."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")

SAMPLES = "torch.testing._internal.hop_db"

#: The operators that a program calls, by function or by name; each has to be one graph, without a break.
WHOLE = {
    "scan", "map", "cond", "while_loop", "while_loop_stack_output", "invoke_subgraph", "invoke_quant",
    "invoke_quant_packed", "auto_functionalize", "flex_attention", "register_hook",
}  # fmt: skip
#: The others, and why they stay outside of graphs. The results are equal all the same.
NOT_CALLED = {
    "flex_attention_backward": "torch's derivative of flex attention makes it; the derivative of our graph is its own",
    "local_map_hop": "it takes an FX module with placements of DTensors, which torch.distributed makes",
    "inline_asm_elementwise": "machine code of a GPU: on the CPU eager mode raises an error",
}
#: Samples that eager mode alone accepts: a loop whose values change their type, and attention of integers.
OUTSIDE = {("while_loop_stack_output", torch.int64), ("flex_attention", torch.int64)}
DTYPES = [torch.float32, torch.float16, torch.int64]


def samples() -> list[Any]:
    """Return torch's samples, each as an instance of `OpInfo`."""
    from torch.testing._internal.hop_db import hop_db

    return hop_db


def test_all_operators_are_listed() -> None:
    assert {info.name for info in samples()} == WHOLE | set(NOT_CALLED)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grad", [False, True])
def test_operators_of_programs_are_whole(dtype: torch.dtype, grad: bool) -> None:
    for info in samples():
        needs = grad or info.name == "register_hook"
        if info.name in WHOLE and (dtype.is_floating_point or not needs):
            compare(info, dtype, grad, breaks=None if (info.name, dtype) in OUTSIDE else 0)


@pytest.mark.parametrize("name", NOT_CALLED)
def test_other_operators_are_called(name: str) -> None:
    for info in samples():
        if info.name == name:
            compare(info, torch.float32, grad=False, breaks=None)


def compare(info: Any, dtype: torch.dtype, grad: bool, breaks: int | None) -> None:
    """Compare results and gradients of all samples; of those that eager mode refuses, the errors."""
    for sample in info.sample_inputs("cpu", dtype, requires_grad=grad):
        framesmith.reset()
        args = (sample.input, *sample.args)
        ours, given = of_ours(info.op), tree_map(of_ours, args)
        compiled = framesmith.compile(lambda *args, ours=ours: ours(*args))
        want, got = outcome(info.op, args), outcome(compiled, given)
        if isinstance(want, str):
            assert got == want, info.full_name
            continue
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
        assert breaks is None or framesmith.stats()["breaks"] == breaks, info.full_name


def outcome(function: Callable[..., Any], args: Any) -> Any:
    """Return results and gradients, of tensors that are copied, or the error's type."""
    args = tree_map(lambda one: one.detach().clone().requires_grad_(one.requires_grad), args) if writes(args) else args
    leaves = [one for one in tree_leaves(args) if torch.is_tensor(one) and one.requires_grad]
    try:
        found = tree_leaves(function(*args))
    except Exception as error:
        return type(error).__name__
    roots = [one.sum() for one in found if one.requires_grad]
    return [*found, *(torch.autograd.grad(roots, leaves, allow_unused=True) if roots else ())]


def writes(args: Any) -> bool:
    """Whether a sample consists of tensors alone, which an operator may write to."""
    return all(isinstance(one, torch.Tensor) for one in args)


def of_ours(function: Any) -> Any:
    """Return torch's sample program as one of a user's file, with those that it calls; other values as they are."""
    if not isinstance(function, types.FunctionType) or function.__module__ != SAMPLES:
        return function
    space = dict(function.__globals__, __name__="samples")
    for name, one in function.__globals__.items():
        region = getattr(one, "__marked_compile_region_fn__", None)
        if region is not None:
            space[name] = torch.compiler.nested_compile_region(in_space(region, space))
        elif isinstance(one, types.FunctionType) and one.__module__ == SAMPLES:
            space[name] = in_space(one, space)
    return in_space(function, space)


def in_space(function: types.FunctionType, space: dict[str, Any]) -> types.FunctionType:
    code = in_file(function.__code__)
    return types.FunctionType(code, space, function.__name__, function.__defaults__, function.__closure__)


def in_file(code: types.CodeType) -> types.CodeType:
    constants = tuple(in_file(one) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="samples.py", co_consts=constants)
