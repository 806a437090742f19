"""Anomaly detection in compiled backward passes: which operation of the user's has a derivative with NaNs.

The engine checks the gradients of a whole graph, whose autograd node is no operation of the user's. Under anomaly
detection the graph is then run again, call by call, to find the first NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.meta import DERIVATIVE_OF, PHASE
from framesmith_aten.operators import op_name


class _FirstNan(fx.Interpreter):
    """Runs a graph and notes the first call of a derivative that makes NaNs from gradients without any.

    The forward pass's values, saved or recomputed, may have NaNs: they are no gradients.
    """

    found: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self.found is None and n.op == "call_function" and _is_gradient(n) and has_nan(result):
            gradients = [self.env[source] for source in n.all_input_nodes if _is_gradient(source)]
            self.found = None if any(map(has_nan, gradients)) else n
        return result


def find_nan(module: fx.GraphModule, arguments: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Raise RuntimeError with the user's operation whose derivative made the NaNs among the gradients.

    Nothing is raised where the first NaN is among the arguments: it was made before.
    """
    if not any(map(has_nan, gradients)):
        return
    interpreter = _FirstNan(module, garbage_collect_values=False)
    interpreter.run(*arguments)
    if interpreter.found is not None:
        raise RuntimeError(message(interpreter.found))


def _is_gradient(node: fx.Node) -> bool:
    return PHASE.get(node) == "backward"


def has_nan(value: Any) -> bool:
    """Whether a tensor, or one of several, has a NaN."""
    if isinstance(value, (tuple, list)):
        return any(map(has_nan, value))
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    return bool(value.isnan().any())


def message(node: fx.Node) -> str:
    """Return the text of the error for a call whose result has NaNs."""
    call = f"{op_name(node.target)} in a compiled backward pass"
    trace = DERIVATIVE_OF.get(node)
    if trace is None:
        return f"A derivative returned nan values: {call}."
    return f"The derivative of an operation returned nan values ({call}). The operation, in the forward pass:\n{trace}"
