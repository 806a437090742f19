"""Compilers as torch's `aot_function` takes them: functions of a graph module and its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from framesmith_aten.contract import BoxedFn, Compiler, Role

#: The attribute by which torch knows boxed functions.
BOXED: Final = "_boxed_call"


@dataclass(frozen=True)
class GraphBackend:
    """The compilers of graphs by role: each takes a module and its inputs."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inference: Callable[..., Any]


def make_boxed(fn: Callable[..., Any]) -> BoxedFn:
    """Return a function of one list, which it empties, for a function of the items: memory is freed as it is used."""

    @functools.wraps(fn)
    def boxed(args: list[Any]) -> Any:
        taken = [*args]
        args.clear()
        return fn(*taken)

    setattr(boxed, BOXED, True)
    return boxed


def compiler_of(backend: GraphBackend) -> Compiler:
    """Return the three compilers as one."""

    def compile(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role) -> BoxedFn:
        made = getattr(backend, role)(gm, [*inputs])
        if not callable(made):
            raise TypeError(f"the compiler of {role} graphs returned {type(made).__name__}, not a function")
        run = made if getattr(made, BOXED, False) else make_boxed(made)

        def flat(args: list[Any]) -> Sequence[Any]:
            found: Any = run(args)
            return (found,) if isinstance(found, torch.Tensor) else found

        return flat

    return compile
