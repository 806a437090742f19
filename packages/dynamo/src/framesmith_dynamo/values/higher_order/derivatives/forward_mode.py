"""Forward-mode AD, `torch.autograd.forward_ad`, in a trace: tangents are computed where they are asked for.

Note [Dual levels]: inside of `dual_level` a dual tensor is an alias of its primal in the trace, without a tangent.
`unpack_dual` copies what depends on dual tensors into a subgraph, and records a node that runs it at a level of its
own. The copy computes what the trace has computed; equal nodes are merged later. Torch says, on fakes, which tensors
have a tangent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.autograd import forward_ad

from framesmith_aten.graphs.transforms import forward_tangent
from framesmith_aten.symbolic import all_equal
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import Subgraph, dependent_subgraph
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.higher_order.subgraphs import recorded_call
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.contexts import TorchContextValue
from framesmith_dynamo.values.transform_levels import Level

if TYPE_CHECKING:
    from torch import fx

    from framesmith_bytecode import Codegen

DUAL = register_break(
    "dual-tensor-refused",
    what="torch.autograd.forward_ad is used in a way that a graph does not support",
    why="torch may reject it, the level is left or entered elsewhere, or the graph ends within the level",
    hint="see the error that follows; where there is none, enter the level in the compiled function, and make and "
    "unpack dual tensors directly within it",
)


@dataclass(frozen=True, eq=False)
class DualLevel(Level):
    """A `dual_level`: its dual tensors with their primals and tangents, and nodes without one all the same."""

    duals: dict[fx.Node, tuple[TensorValue, TensorValue]] = field(default_factory=dict)
    unpacked: set[fx.Node] = field(default_factory=set)


class DualLevelValue(TorchContextValue):
    """`forward_ad.dual_level()`."""

    __slots__ = ()
    is_reentered = False

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(DUAL, f"{name} of dual_level is called")

    def enter(self, tr: Tracer) -> Value:
        body = tr.facts.body
        around = () if body.level is None else body.level.outwards()
        if body.functions or any(one.kind != "grad" for one in around):
            raise GraphBreak(DUAL, "a level is entered in forward mode, under vmap or in a method of a Function")
        self.saved.append(body.level)
        body.level = DualLevel("jvp", body.level)
        return tr.constant(0)

    def exit_(self, tr: Tracer, args: Args) -> Value:
        tr.facts.body.level = self.saved.pop()
        return tr.constant(None)

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(DUAL, "the graph ends within the level")


@handles(forward_ad.dual_level)
def dual_level(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`forward_ad.dual_level()`, as a context manager or a decorator."""
    if args or kwargs:
        raise GraphBreak(DUAL, "dual_level is given arguments")
    return DualLevelValue(forward_ad.dual_level, (), {})


@handles(forward_ad.make_dual)
def make_dual(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`forward_ad.make_dual(tensor, tangent, *, level=None)`."""
    given = named(tr, forward_ad.make_dual, args, kwargs, ("tensor", "tangent", "level"), 2)
    level, primal, tangent = _level(tr, given), given["tensor"], given["tangent"]
    if not (isinstance(primal, TensorValue) and isinstance(tangent, TensorValue)):
        raise GraphBreak(DUAL, "make_dual is given other things than tensors")
    one, other = primal.fake, tangent.fake
    fits = (one.dtype, one.device, one.layout) == (other.dtype, other.device, other.layout)
    if not fits or not all_equal(one.shape, other.shape) or not (one.is_floating_point() or one.is_complex()):
        raise GraphBreak(DUAL, "a tangent has another shape or type than its primal")
    if one.is_conj() or one.is_neg() or other.is_conj() or other.is_neg():
        raise GraphBreak(DUAL, "a tensor is a lazy view")
    if any(_depending(level, tr, value) is not None for value in (primal, tangent)):
        raise GraphBreak(DUAL, "a dual tensor is made of another one")
    made = _alias(tr, primal)
    level.duals[made.as_proxy()] = primal, tangent
    return made


@handles(forward_ad.unpack_dual)
def unpack_dual(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`forward_ad.unpack_dual(tensor, *, level=None)`."""
    given = named(tr, forward_ad.unpack_dual, args, kwargs, ("tensor", "level"), 1)
    tensor = given["tensor"]
    if not isinstance(tensor, TensorValue):
        raise GraphBreak(DUAL, f"unpack_dual is given {tensor.describe()}")
    if tr.facts.body.level is None and "level" not in given:
        return _unpacked(tr, tensor, tr.constant(None))
    level = _level(tr, given)
    tangent = _tangent(level, tr, tensor)
    primal = _alias(tr, tensor)
    level.unpacked.add(primal.as_proxy())
    return _unpacked(tr, primal, tr.constant(None) if tangent is None else tangent)


def _unpacked(tr: Tracer, primal: Value, tangent: Value) -> Value:
    return tr.call(tr.constant(forward_ad.UnpackedDualTensor), (primal, tangent), {})


def _level(tr: Tracer, given: Kwargs) -> DualLevel:
    level = tr.facts.body.level
    if not isinstance(level, DualLevel):
        raise GraphBreak(DUAL, "no level is active, or it was entered around a transform")
    if "level" in given and given["level"].as_plain() not in (None, 0):
        raise GraphBreak(DUAL, "another level is named")
    return level


def _alias(tr: Tracer, tensor: TensorValue) -> TensorValue:
    made = tr.call_torch("view_as", (tensor, tensor), {})
    assert isinstance(made, TensorValue)
    return made


def _depending(level: DualLevel, tr: Tracer, tensor: TensorValue) -> Subgraph | None:
    """Return the subgraph from dual tensors to a tensor, or None."""
    if not level.duals:
        return None
    return dependent_subgraph(tr.builder, [*level.duals], [tensor.as_proxy()], level.unpacked)


def _tangent(level: DualLevel, tr: Tracer, tensor: TensorValue) -> Value | None:
    """Return the tangent of a tensor, or None: see Note [Dual levels]."""
    body = _depending(level, tr, tensor)
    if body is None:
        return None
    known = level.duals.get(tensor.as_proxy())
    if known is not None and all_equal(known[0].fake.stride(), known[1].fake.stride()):
        return known[1]
    operands = [*(primal for primal, _ in level.duals.values()), *(tangent for _, tangent in level.duals.values())]
    [tangent] = recorded_call(tr, forward_tangent, (body,), (len(level.duals),), operands)
    return None if tangent.is_none() else tangent
