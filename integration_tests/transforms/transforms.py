"""Programs of torch's function transforms, run as one graph and compared with eager mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor  # `assert_close` does, and what that registers with pytrees has guards fail
from torch.utils._pytree import tree_leaves, tree_map_only

import framesmith

Tensor = torch.Tensor
#: A function, and the arguments of its calls.
Program = tuple[Callable[..., Any], list[tuple[Any, ...]]]


class Programs(dict[str, Callable[[], Program]]):
    """Programs by name; the arguments of each are made when it runs."""

    def simple(self, name: str, function: Callable[..., Any], *args: Callable[[], Any]) -> None:
        """Add a program of one call."""
        self[name] = lambda: (function, [tuple(make() for make in args)])

    def program(self, make: Callable[[], Program]) -> Callable[[], Program]:
        """Add a program, as a decorator of the function that makes it."""
        self[make.__name__] = make
        return make


def t(*sizes: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(*sizes).to(dtype)
    return made.requires_grad_(grad)


def m(*sizes: int) -> Callable[[], Tensor]:
    """Return a function that makes a new tensor of these sizes, with a gradient."""
    return lambda: t(*sizes)


def plain(*sizes: int) -> Tensor:
    return t(*sizes, grad=False)


def seen(result: Any) -> list[Any]:
    """All that is seen of tensors in a result, with their values and all else."""
    leaves = tree_leaves(result)
    return [(one.shape, one.stride(), one.dtype, one.requires_grad) if torch.is_tensor(one) else one for one in leaves]


def gradients(result: Any, of: list[Tensor]) -> list[Tensor | None]:
    for one in of:
        one.grad = None
    results = [one for one in tree_leaves(result) if torch.is_tensor(one) and one.requires_grad]
    if results and of:
        torch.autograd.backward([one.double().square().sum() for one in results])
    return [one.grad for one in of if one.is_leaf]


def close(got: Any, want: Any, leaves: list[Tensor]) -> None:
    """The same structure, layouts, values and gradients."""
    assert seen(got) == seen(want)
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if torch.is_tensor(one):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(got, leaves), gradients(want, leaves), rtol=1e-4, atol=1e-5)


def run(program: Program, reference: Callable[..., Any] | None = None, **options: Any) -> None:
    """Compare the compiled program with `reference`, or with itself in eager mode."""
    function, calls = program
    reference = reference or function
    compiled = framesmith.compile(function, fullgraph=True, strict=True, **options)
    for args in [*calls, calls[0]]:
        leaves = [one for one in tree_leaves(args) if torch.is_tensor(one) and one.requires_grad]
        torch.manual_seed(7)
        want = reference(*args)
        drawn = torch.rand(1)
        torch.manual_seed(7)
        got = compiled(*args)
        assert torch.equal(torch.rand(1), drawn)
        close(got, want, leaves)
    assert torch._C._functorch.peek_interpreter_stack() is None


def outcome(function: Callable[..., Any], *args: Tensor) -> Any:
    """Return a call's result or error, and the state of its arguments, random numbers and functorch afterwards."""
    torch.manual_seed(3)
    try:
        found = function(*args)
    except Exception as error:
        found = (type(error), str(error))
    assert torch._C._functorch.peek_interpreter_stack() is None
    shown = tree_map_only(torch.Tensor, lambda one: (one.tolist(), one.stride(), one.requires_grad), found)
    return shown, [one.tolist() for one in args], torch.rand(1).item()


def output_of_new_process(program: str) -> str:
    """Return what a program prints in a process of its own, which has imported nothing."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout
