"""The usual backward pass of an autograd node, without Python between the engine and the program: design 0042."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from framesmith_aot.partition.split import NodePart
from framesmith_aot.runtime.backward import BackwardPass, Layout
from framesmith_aot.torch_adapter import unstable
from framesmith_aten.contract import BoxedFn
from framesmith_aten.layouts import copy_with_strides, in_order
from framesmith_guards.programs.native.backward import UsualPass, guarded_pass

#: Questions answered with yes where a pass does more than run a program: histories, modes to turn off, batches, NaN.
UNUSUAL: Final[tuple[Callable[[], object], ...]] = (
    torch.is_grad_enabled,
    torch.is_anomaly_enabled,
    unstable.is_any_autocast_enabled,
    unstable.peek_interpreter_stack,
)


def install_usual_passes(
    node_class: Any, run: BackwardPass, part: NodePart, given: int, dropped: tuple[str, ...]
) -> None:
    """Let each program of `run`, once compiled, be the `apply` of a class of nodes in the usual case.

    The class's own `apply` stays for all others. `given`: the number of arguments after the operands, which have no
    gradients. `dropped`: see `UsualPass`. Precondition: with plain tangents and no mode on, the pass checks nothing but
    its saved tensors.
    """

    def install(pattern: tuple[bool, ...], program: BoxedFn | None, positions: tuple[int | None, ...]) -> None:
        if program is None or (part.shape.asks_absent and any(pattern)):
            return
        usual = UsualPass(
            program,
            len(part.saved) if part.shape.eager_saved.anything or part.reads else None,
            "numbers" if part.numbers else None,
            run.tangents(pattern),
            (*positions, *[None] * given),
            dropped,
        )
        keeps = unstable.get_current_graph_task_keep_graph
        guarded = guarded_pass(usual, node_class.apply, UNUSUAL, keeps, _arranged)
        if guarded is not None:
            node_class.apply = guarded

    run.on_program = install


def _arranged(tangent: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a tangent in another layout."""
    return in_order(tangent, layout) if isinstance(layout, list) else copy_with_strides(tangent, layout)
