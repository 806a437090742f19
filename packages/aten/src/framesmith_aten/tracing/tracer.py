"""Records the ATen calls that reach it into an FX graph, `meta["val"]` on every node.

The tracer sits below autograd (and functionalisation, where that is on) and above the fake tensor mode. It sees ATen
calls on fake tensors; composite operators, which nothing has decomposed in inference mode, it decomposes itself.

Note [What is recorded]: a call that returns tensors, and one that is run for its effect (`operators.is_effect`). Other
calls of torch's own are questions about types and shapes, answered while tracing. A non-tensor result of another
library's operator is unknown, and refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from framesmith_aten.checks import kernel_probes
from framesmith_aten.checks.overlaps import OUTSIDE_VIEW, Part, parts_shown
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.failures import within_storage
from framesmith_aten.fakes.light_torch import LightDispatchMode
from framesmith_aten.graphs.autograd_calls import engine_gradients
from framesmith_aten.graphs.numbers import LAYOUT_QUERIES, ScalarNodes, insertion_point
from framesmith_aten.layouts import dims_by_stride, has_stride, in_order, is_dense, sizes_below, span
from framesmith_aten.meta import CHECKPOINT, CHECKPOINT_PATH, DERIVATIVE_OF, PART, PHASE, SAVED_IN, Checkpoint, Phase
from framesmith_aten.operators import (
    acts_on_no_operands,
    arguments,
    asks_device,
    asks_sizes,
    changes_metadata,
    gives_unknown_value,
    is_composite,
    is_random,
    is_view,
    may_drop_ones,
    row,
    undeclared_writes,
)
from framesmith_aten.symbolic import (
    SYMBOLIC,
    as_expressions,
    is_symbolic,
    is_the_same,
    is_unbacked,
    number_type,
    take_known,
)
from framesmith_aten.table import MayFail
from framesmith_aten.torch_adapter import unstable
from framesmith_aten.tracing.decompositions import CORRECTED, Lowers, Rule, decomposition_of, lowers_nothing
from framesmith_aten.tracing.shape_rules import SHAPE_RULES
from framesmith_aten.tracing.zero_tangents import ZeroTangents
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, OpOverload, aten

_PROVENANCE = ("stack_trace", "nn_module_stack", PART.name)
#: Entries of an operation's node, and those of the nodes that compute its derivative.
_OF_DERIVATIVES = {"stack_trace": DERIVATIVE_OF.name, "nn_module_stack": "fwd_nn_module_stack"}
#: The dtypes of the tensors that torch makes of numbers.
_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})


class GraphTracer(LightDispatchMode):
    """A dispatch mode that appends every call to `graph`; enter it inside `fake_mode`.

    Operators are decomposed by `rules`, and by `decompositions` but for those that the backend `lowers`. `source` is
    the torch-level node being run (its stack trace is copied, and its checkpoint, whose policies are asked),
    `phase` goes to `meta["phase"]`. Real tensors among arguments become attributes, listed in `attributes`. Raises
    TraceUnsupported.
    """

    #: Operators under this mode become a graph; control flow asks.
    records_graph = True

    def __init__(
        self, fake_mode: FakeTensorMode, lowers: Lowers = lowers_nothing, rules: Mapping[OpOverload, Rule] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.fake_mode = fake_mode
        self.lowers = lowers
        self.rules = rules or {}
        self.source: fx.Node | None = None
        self.phase: Phase = "forward"
        #: The user's operations, by the sequence numbers of their autograd nodes.
        self._operations: dict[int, fx.Node] = {}
        #: Constants, and the bodies of control flow.
        self.attributes: dict[str, Any] = {}
        #: The number of views through which no write is carried back exactly.
        self.undone_by_sums = 0
        self._bodies: dict[fx.GraphModule, fx.Node] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []
        self.numbers = ScalarNodes(self.graph)
        #: Views of symbolic sizes, with their bases.
        self.parts: list[Part] = []
        self.zeros = ZeroTangents()
        self._unbacked: dict[Any, list[Any]] = {}
        #: Results of random operators; and those of an earlier run, where they are used again.
        self.drawn: list[torch.Tensor] = []
        self.saved_draws: Iterator[torch.Tensor] | None = None
        #: Whether an operator is running whose result a policy is asked about.
        self._asking = False

    def placeholder(self, name: str, value: Any, *, guarded: bool = False) -> fx.Node:
        """Add a graph input for the fake tensor or symbolic number `value`.

        `guarded`: every call has all of its layout, also strides along dimensions of size 1.
        """
        node = self.graph.placeholder(name)
        self._describe(node, value)
        if isinstance(value, torch.Tensor):
            self._bind(value, node, guarded=guarded)
        else:
            self.numbers.bind(value, node)
        return node

    def node_of(self, value: torch.Tensor) -> fx.Node:
        """Return the node that computed the fake tensor `value`; a constant becomes an attribute."""
        node = self._nodes.get(id(value))
        return node if node is not None else self._attribute(value)

    def dispatch(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if asks_device(func):
            return args[0].device
        if asks_sizes(func):
            return [*sizes_below(args[0])]
        kwargs = kwargs or {}
        asked = self._policies()
        if not asked:
            return self._traced(func, args, kwargs)
        self._asking = True
        try:
            result = self._traced(func, args, kwargs)
        finally:
            self._asking = False
        self._ask(asked, func, args, kwargs, result)
        return result

    def _policies(self) -> list[Checkpoint]:
        """Return the checkpoints whose policies an operator is shown: none for one that a decomposition calls."""
        inner = None if self.source is None or self._asking else CHECKPOINT.get(self.source)
        return [] if inner is None else [one for one in inner.outwards() if one.saves is not None]

    def _ask(self, asked: Sequence[Checkpoint], func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note on the nodes of an operator's results which checkpoints save them."""
        numbers = tuple([one.number for one in asked if one.saves and one.saves(func, args, kwargs, result)])
        for value in result if isinstance(result, (tuple, list)) else (result,):
            node = self._nodes.get(id(value)) if isinstance(value, torch.Tensor) else None
            if node is not None and numbers:
                SAVED_IN.set(node, numbers)

    def _traced(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        instead = self.zeros.instead_of(func, args, kwargs)
        if instead is not None:
            with self:
                return instead()
        out = self._recorded(func, args, kwargs)
        self.zeros.note(func, args, out)
        return out

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self.rules.get(func) or decomposition_of(func, self.lowers)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                own = func in self.rules or func in CORRECTED or is_composite(func)
                return result if own else self._laid_out(result, kernel_probes.as_laid_out(func, args, kwargs, result))
        _refuse(func, args, kwargs)
        self.undone_by_sums += row(func).undone_by_sums
        shape_rule = SHAPE_RULES.get(func)
        out = shape_rule(*args, **kwargs) if shape_rule is not None else None
        if not acts_on_no_operands(func):
            out = _each_its_own(
                kernel_probes.as_laid_out(func, args, kwargs, func(*args, **kwargs) if out is None else out)
            )
        self._note_parts(func, args, kwargs, out)
        self._record(func, args, kwargs, out)
        return out

    def _note_parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record views of symbolic sizes; a repeated view has the unbacked numbers of the first."""
        parts = parts_shown(func, (args, kwargs), out)
        self.parts += parts
        numbers = [number for part, _ in parts for number in (*part.size, part.offset)]
        if any(map(is_unbacked, numbers)):
            key = (func, parts[0][1].key, as_expressions(args[1:]), as_expressions(sorted(kwargs.items())))
            former = self._unbacked.setdefault(key, numbers)
            is_the_same(numbers, former)
            take_known(numbers, former)

    def _laid_out(self, result: Any, operator_result: Any) -> Any:
        """Return the result of a decomposition with the strides of the operator's."""
        if isinstance(result, torch.Tensor):
            if has_stride(result, operator_result.stride()):
                return result
            with self:
                return in_order(result, dims_by_stride(operator_result.stride()))
        if isinstance(result, (list, tuple)):
            return (list if isinstance(result, list) else tuple)(map(self._laid_out, result, operator_result))
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """See Note [What is recorded]."""
        if gives_unknown_value(func, out):
            raise TraceUnsupported("unknown-value", f"a result of {func}", "it is no tensor: its value is not known")
        results = out if isinstance(out, (tuple, list)) else (out,)
        tensors = {at: result for at, result in enumerate(results) if isinstance(result, torch.Tensor)}
        if not tensors and func._schema.returns:
            if is_symbolic(out) and func not in LAYOUT_QUERIES:
                self._number(func, args, kwargs, out)
            return
        if is_random(func) and self._drawn_before([*tensors.values()]):
            return
        # A lifted constant must not change: the graph computes with a copy of it.
        target = aten.clone.default if func in _LIFTS else func
        if is_view(func) and not isinstance(args[0], torch.Tensor):
            args = (self._tensor_of(args[0]), *args[1:])  # a number that torch accepted as a tensor
        if row(func).copies and not isinstance(args[0], torch.Tensor):
            args = (self._tensor_of(args[0], _OF_NUMBERS[number_type(args[0])]), *args[1:])
        if func is aten.copy.default and not isinstance(args[1], torch.Tensor):
            args = (args[0], self._tensor_of(args[1], _OF_NUMBERS[number_type(args[1])], args[0].device), *args[2:])
        node = self.graph.create_node("call_function", target, self._strip(args), self._strip(kwargs))
        self._describe(node, out)
        if isinstance(out, torch.Tensor):
            self._bind(out, node)
            return
        for at, result in tensors.items():
            part = self.graph.create_node("call_function", operator.getitem, (node, at))
            self._describe(part, result)
            self._bind(result, part)

    def _drawn_before(self, results: Sequence[torch.Tensor]) -> bool:
        """Whether results of a random operator are those of an earlier run, which then stand for them."""
        if self.saved_draws is None:
            self.drawn += results
            return False
        for result in results:
            saved = next(self.saved_draws, None)
            if saved is None or (saved.dtype, saved.dim()) != (result.dtype, result.dim()):
                raise TraceUnsupported("random-body", "random numbers", "a body draws others when it runs again")
            with self:
                laid = saved if has_stride(saved, result.stride()) else in_order(saved, dims_by_stride(result.stride()))
            self._bind(result, self.node_of(laid))
        return True

    def _number(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        node = self.graph.create_node("call_function", func, self._strip(args), self._strip(kwargs))
        self._describe(node, out)
        self.numbers.bind(out, node)

    def call_bodies(
        self,
        target: Any,
        bodies: Sequence[fx.GraphModule],
        settings: Sequence[Any],
        operands: Sequence[Any],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Record a call of a function of `graphs.control_flow`, which makes the fake tensors `results`."""
        held = [self._held(body) for body in bodies]
        node = self.graph.create_node("call_function", target, (*held, *settings, *map(self._strip, operands)))
        self._describe(node, tuple(results))
        for at, result in enumerate(results):
            part = self.graph.create_node("call_function", operator.getitem, (node, at))
            self._describe(part, result)
            self._bind(result, part)

    def _held(self, body: fx.GraphModule) -> fx.Node:
        """Return the node that holds a body, which calls may share."""
        node = self._bodies.get(body)
        if node is None:
            name = f"_body{len(self.attributes)}"
            self.attributes[name] = body
            node = self._bodies[body] = self.graph.create_node("get_attr", name)
            self._describe(node, body)
        return node

    def call_number(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record a call of one of `numbers.FUNCTIONS` that computes the scalar `out`."""
        if not self.numbers.knows(out):
            self._number(function, args, kwargs, out)

    def check_number(self, condition: Any, message: str) -> None:
        """Record a check that a sympy condition of known scalars holds, else RuntimeError.

        It runs as soon as the scalars are known: computations on them before it assume it, too.
        """
        known = self.numbers.of_expression(condition)
        with self.graph.inserting_before(insertion_point(known)):
            check = self.graph.create_node("call_function", aten._assert_scalar.default, (known, message))
        self._describe(check, None)

    def _tensor_of(
        self, number: Any, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> torch.Tensor:
        dtype = torch.result_type(number, number) if dtype is None else dtype
        with self:
            made: torch.Tensor = aten.scalar_tensor.default(number, dtype=dtype, device=device)
        return made

    def _bind(self, value: torch.Tensor, node: fx.Node, *, guarded: bool = False) -> None:
        """Make `node` the one that computes `value`."""
        self._nodes[id(value)] = node
        self._alive.append(value)
        if value._has_symbolic_sizes_strides and value.layout is torch.strided:
            self.numbers.offer_layout(value, node, guarded=guarded)

    def _attribute(self, value: torch.Tensor) -> fx.Node:
        if isinstance(value, FakeTensor):
            raise TraceUnsupported("unknown-tensor", "a fake tensor from outside the graph", "its value is not known")
        name = f"_constant{len(self.attributes)}"
        self.attributes[name] = value
        node = self.graph.create_node("get_attr", name)
        self._describe(node, self.fake_mode.from_tensor(value, static_shapes=True))
        self._bind(value, node)
        return node

    def _describe(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
        PHASE.set(node, self.phase)
        self._describe_derivative(node)
        if self.source is not None:
            for key in _PROVENANCE:
                if key in self.source.meta:
                    node.meta[key] = self.source.meta[key]
            checkpoint = CHECKPOINT.get(self.source)
            if checkpoint is not None:
                CHECKPOINT_PATH.set(node, checkpoint.path)

    def _describe_derivative(self, node: fx.Node) -> None:
        """Note the user's operation that made the autograd node that runs; in the forward pass, the one made last."""
        if self.phase == "backward" or (self.source is not None and self.source.target is engine_gradients):
            running = unstable.current_autograd_node()
            operation = None if running is None else self._operations.get(running._sequence_nr())
            if operation is not None:
                for key, own in _OF_DERIVATIVES.items():
                    if key in operation.meta:
                        node.meta[own] = operation.meta[key]
        elif self.source is not None:
            following = unstable.next_sequence_nr()
            if following is not None:  # operations without a derivative come after the one that took the number
                self._operations.setdefault(following - 1, self.source)

    def _strip(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._strip(item) for item in value])
        if isinstance(value, dict):
            return {key: self._strip(item) for key, item in value.items()}
        if isinstance(value, torch.Generator):
            why = "its state cannot be made a graph input"
            raise TraceUnsupported("generator", "a random generator as an argument", why)
        return self.number_of(value) if type(value) in SYMBOLIC else value

    def number_of(self, number: Any) -> fx.Node | int | float | bool:
        """Return the node of a symbolic number, or the number where it is known."""
        try:
            return self.numbers.node_of(number)
        except KeyError as error:
            raise TraceUnsupported("unknown-number", f"the number {number}", str(error.args[0])) from error


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TraceUnsupported where recording the call would lose part of its meaning."""
    if not isinstance(func, OpOverload):
        raise TraceUnsupported("no-operator", str(func), "only ATen and custom operators are recorded")
    if changes_metadata(func):
        why = "an operator under the call changes sizes, strides or storage in place"
        raise TraceUnsupported("metadata-mutation", str(func), why)
    if undeclared_writes(func, args, kwargs):
        why = "it updates running statistics that its schema does not declare"
        raise TraceUnsupported("hidden-mutation", str(func), why)
    if func is aten.as_strided_scatter.default and not _is_within(*args, **kwargs):
        raise TraceUnsupported(OUTSIDE_VIEW, str(func), "it writes to memory that its operand does not show")
    if may_drop_ones(func, args, kwargs):
        why = "whether a dimension has one element is known when it runs"
        raise TraceUnsupported("data-dependent", str(func), why)
    # Fakes would enlarge their storage.
    if row(func).fails is MayFail.STORAGE and not within_storage(arguments(func, args, kwargs)):
        raise TraceUnsupported("outside-storage", str(func), "the view goes beyond its storage")


def _each_its_own(out: Any) -> Any:
    """Return distinct results: torch's rule for oneDNN's LSTM returns one of them twice."""
    if not isinstance(out, (tuple, list)) or len(set(map(id, out))) == len(out):
        return out
    met: set[int] = set()
    results = []
    for result in out:
        again = isinstance(result, torch.Tensor) and id(result) in met
        results.append(result.new_empty_strided(result.shape, result.stride()) if again else result)
        met.add(id(result))
    return type(out)(results)


def _is_within(
    value: torch.Tensor, source: torch.Tensor, size: list[Any], stride: list[Any], storage_offset: Any = None
) -> bool:
    """Whether each element of a view by strides is one of `value`'s."""
    first, end = span(value)
    view = value.as_strided(size, stride, storage_offset)
    start, last = span(view)
    return is_dense(value.shape, value.stride()) and first <= start and last <= end
