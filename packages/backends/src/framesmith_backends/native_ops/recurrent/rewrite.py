"""Writes calls of the native recurrent layers into graphs: the loop over time is one call.

The matmul of the inputs of all steps, and the gradients of weights and inputs, are written as matmuls of the graph:
they go to the provider of its other matmuls, and unread ones are not computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import all_equal
from framesmith_aten.table import OWN_NAMESPACE
from framesmith_aten.tracing import recurrent as lstm_layers
from framesmith_aten.tracing import recurrent_loops
from framesmith_backends.native_ops.base import CODE, is_on_cpu, rewritten
from framesmith_backends.native_ops.recurrent.calls import Calls
from framesmith_backends.rewrite.replacing import Copies
from framesmith_guards.torch_adapter import OpOverload

#: aten::mkldnn_rnn_layer's number for an LSTM.
LSTM_MODE = 2
#: OneDNN computes LSTMs of more rows and more units than these in 0.9 of the time, if nothing is saved for gradients
#: (measured on a Zen 4): its matmuls have more rows.
MOST_UNITS, MOST_ROWS = 96, 16

Node = Any
Written = Mapping[int, Node] | Node


def with_recurrent_layers(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with such calls; the same graph if it has none."""
    if not any(map(_may_be_recurrent, gm.graph.nodes)):
        return gm  # before operators are defined
    rows = _rows()
    found = {node: rows[node.target] for node in gm.graph.nodes if node.target in rows and _is_plain(node)}

    def write(graph: fx.Graph, node: fx.Node, copies: Copies) -> fx.Node | None:
        made = found[node](_Writing(graph, copies), node)
        if isinstance(made, fx.Node):
            made.meta = node.meta | made.meta
            return made
        parts = (part for part in node.users if part.target is operator.getitem)
        copies.update({part: made[part.args[1]] for part in parts})  # type: ignore[index]
        return None

    return rewritten(gm, dict.fromkeys(found, write))


def _may_be_recurrent(node: fx.Node) -> bool:
    own = isinstance(node.target, OpOverload) and node.target.namespace == OWN_NAMESPACE
    return own or node.target is lstm_layers.LAYER


def _rows() -> dict[object, Callable[[_Writing, fx.Node], Written]]:
    """Operators, and the writers of their calls."""
    return {
        lstm_layers.LAYER: _lstm, lstm_layers.layer(): _lstm, lstm_layers.derivative(): _lstm_backward,
        **{recurrent_loops.layer(kind): partial(_states, kind, False) for kind in recurrent_loops.LAYERS},
        recurrent_loops.gru_with_gates(): partial(_states, "gru", True),
        recurrent_loops.gru_backward(): partial(_loop, "gru", "GRU_BACKWARD"),
        recurrent_loops.rnn_backward(): partial(_loop, "rnn_tanh", "RNN_BACKWARD"),
    }  # fmt: skip


def _is_plain(node: fx.Node) -> bool:
    """Whether the native layer computes the node's results, and faster."""
    tensors = [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    floats = [one for one in tensors if one.dtype != torch.uint8]  # beside a workspace
    if not all(is_on_cpu(x) and x.dtype == torch.float32 for x in floats) or not isinstance(node.target, OpOverload):
        return False
    given = arguments(node.target, node.args, node.kwargs)
    if not _fits(given):
        return False
    if "batch_sizes" not in given:
        return True
    if given["mode"] != LSTM_MODE or given["batch_sizes"]:
        return False
    return node.target is not lstm_layers.LAYER or (_is_small(given["hx_"]) and 3 not in _parts_of(node))


def _fits(given: Mapping[str, Any]) -> bool:
    """Whether weights, biases and states of a layer are of sizes that belong together, with nothing to broadcast."""
    if "params" in given:
        weights, states, rank = [*given["params"]], [given["hx"]], 3
    elif "hx_" in given:
        weights = [given[name] for name in ("weight0", "weight1", "weight2", "weight3", "weight4") if name in given]
        states, rank = [given["hx_"], given["cx_"] if "cx_" in given else given["cx_tmp"]], 2
    else:
        return True  # a backward loop, whose operands are the forward pass's
    first, second, *biases = (one.meta["val"].shape for one in weights)
    if len(second) != 2 or not all(isinstance(size, int) for size in second):
        return False
    rows, hidden = second
    input = given["input"].meta["val"].shape
    wanted = [(first, (rows, input[2])), *((bias, (rows,)) for bias in (biases if given["has_biases"] else ()))]
    wanted += [(one.meta["val"].shape, (1, input[1], hidden)[3 - rank :]) for one in states]
    return 0 < hidden <= rows and all(len(shape) == len(size) and all_equal(shape, size) for shape, size in wanted)


def _is_small(state: object) -> bool:
    assert isinstance(state, fx.Node)
    return any(
        isinstance(size, int) and size <= most
        for size, most in zip(state.meta["val"].shape, (MOST_ROWS, MOST_UNITS), strict=True)
    )


def _parts_of(node: fx.Node) -> set[object]:
    """The numbers of a call's results that are read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def _with_code(call: fx.Node, kind: str, backward: bool, weight: Node) -> fx.Node:
    """The call, with its machine code begun where the number of units is known."""
    from framesmith_backends.native_ops.recurrent.operator import CODE as LAYERS
    from framesmith_backends.native_ops.recurrent.operator import layer_of

    hidden = weight.meta["val"].shape[1]
    if isinstance(hidden, int):
        CODE.set(call, LAYERS[layer_of(kind, backward, hidden)].engine)
    return call


class _Writing(Calls):
    """Writes calls into a graph, with their fake results. `copies` stand there for the nodes of another one."""

    def __init__(self, graph: fx.Graph, copies: Mapping[fx.Node, Node]) -> None:
        self.graph, self.copies = graph, copies

    def of(self, node: Node) -> Node:
        """The copy of an operand."""
        return self.copies[node] if isinstance(node, fx.Node) else node

    def call(self, target: OpOverload, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*fx.node.map_arg(args, lambda node: node.meta["val"]), **kwargs)
        return made

    def part(self, results: Node, which: int) -> Node:
        made = self.graph.call_function(operator.getitem, (results, which))
        made.meta["val"] = results.meta["val"][which]
        return made

    def value(self, x: Node) -> torch.Tensor:
        found: torch.Tensor = x.meta["val"]
        return found


def _loop(kind: str, name: str, w: _Writing, node: fx.Node) -> Node:
    """Write the native operator of that name, with the operands of the backward loop it replaces."""
    from framesmith_backends.native_ops.recurrent import operator as recurrent

    call = w.graph.call_function(getattr(recurrent, name), tuple(map(w.of, node.args)))
    return _with_code(call, kind, True, node.args[-1])


def _lstm(w: _Writing, node: fx.Node) -> Node:
    """Write the layer, with a workspace for the derivative where the operator has one."""
    from framesmith_backends.native_ops.recurrent.operator import LSTM

    given = _named(w, node)
    first, second = (given["weight2"], given["weight3"]) if given["has_biases"] else (None, None)
    gates = w.matmul(w.flat(given["input"]), w.transposed(given["weight0"]), first)
    keep = node.target is not lstm_layers.LAYER
    met = given["input"] if keep and given["reverse"] else None
    operands = (gates, given["weight1"], second, given["hx_"], given["cx_"], given["reverse"], keep, met)
    return _with_code(w.graph.call_function(LSTM, operands), "lstm", False, given["weight1"])


def _states(kind: str, keep: bool, w: _Writing, node: fx.Node) -> Node:
    from framesmith_backends.native_ops.recurrent.operator import STATES

    given = _named(w, node)
    weights: Sequence[Node] = given["params"]
    first, second = weights[2:] if given["has_biases"] else (None, None)
    gates = w.matmul(w.flat(given["input"]), w.transposed(weights[0]), first)
    call = w.graph.call_function(STATES, (kind, gates, weights[1], second, given["hx"], keep))
    return _with_code(call, kind, False, weights[1])


def _named(w: _Writing, node: fx.Node) -> dict[str, Any]:
    """A call's operands in the new graph, by their names in its schema."""
    assert isinstance(node.target, OpOverload)
    given = arguments(node.target, node.args, node.kwargs)
    return {name: fx.node.map_arg(value, w.of) for name, value in given.items()}


def _lstm_backward(w: _Writing, node: fx.Node) -> dict[int, Node]:
    """The gradients that are read."""
    from framesmith_backends.native_ops.recurrent.operator import lstm_gradients

    given = _named(w, node)
    found = lstm_gradients(w, given, _parts_of(node))
    _with_code(found[5].args[0], "lstm", True, given["weight2"])  # the loop, of which this is a part
    return found
