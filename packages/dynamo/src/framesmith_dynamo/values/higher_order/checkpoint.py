"""`torch.utils.checkpoint.checkpoint`: its function is traced in place, and the graph's nodes name the checkpoint.

Note [Checkpoints]: the function runs once in the graph, with its side effects in order. Eager mode runs it again in the
backward pass, where its effects occur a second time: a function with effects that others see breaks the graph. The
backward pass of a compiled graph recomputes tensors alone (`framesmith_aot.partition.checkpoints`).

The reentrant kind first runs its function without gradients. It is traced like the other kind where no difference can
be seen: results are tensors of their own, arguments or views of these, which require gradients, and nothing in the
function asks for histories. Its restriction to `backward()` is that of the compiled backward pass, too.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.utils.checkpoint
from torch import fx

from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.builder import fake_of_node
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_sideeffects import MutationRefused

OPTIONS = register_break(
    "activation-checkpoint",
    what="torch.utils.checkpoint.checkpoint is called in a way that a graph does not support",
    why="torch rejects the arguments, or they ask for something that happens beside the computation",
    hint="see the error that follows; where there is none, omit `debug`, and give the options as constants",
)
EFFECT = register_break(
    "checkpoint-effect",
    what="a checkpointed function changes an object or a tensor that it did not make",
    why="eager mode runs it again in the backward pass, where the change is made a second time",
    hint="return the new values, and make the change outside of the checkpoint; batch normalisation that updates its "
    "statistics is such a change",
)
SAVED_CHANGES = register_break(
    "checkpoint-saved-changed",
    what="a checkpointed function changes in place a tensor that its backward pass needs as it was",
    why="eager mode's recomputation makes the change before the gradient is computed",
    hint="use the operation that returns a new tensor",
)
RANDOM = register_break(
    "checkpoint-random",
    what="a checkpoint with preserve_rng_state=False draws random numbers",
    why="eager mode draws others when it computes the function again",
    hint="omit preserve_rng_state=False",
)
CONTEXT = register_break(
    "checkpoint-context",
    what="a checkpoint has a context_fn that is no selective policy, or one that is made while tracing",
    why="they are entered around the function and around its recomputation, of which a graph has none",
    hint="use functools.partial(create_selective_checkpoint_contexts, policy), where `policy` is a list of operators, "
    "or a function made outside of the compiled function",
)
REENTRANT = register_break(
    "checkpoint-reentrant",
    what="a reentrant checkpoint (use_reentrant=True, the default) is used where it differs from one that is not",
    why="it computes the function without gradients first: no argument requires one, the function asks for gradients' "
    "state, or a result requires no gradient, or shares memory with another result or a tensor that is no argument",
    hint="pass use_reentrant=False",
)

Fakes = Sequence[torch.Tensor]

#: The parameters of torch's function that are keywords, with their defaults.
DEFAULTS: Final[Mapping[str, Any]] = {
    name: one.default
    for name, one in inspect.signature(torch.utils.checkpoint.checkpoint).parameters.items()
    if one.kind is inspect.Parameter.KEYWORD_ONLY
}
PRESERVES: Final = "preserve_rng_state"
#: Values of options that only matter while eager mode recomputes: a graph computes the same again. With `debug`, torch
#: logs each operator.
WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "determinism_check": ("default", "none"),
    "early_stop": (True, False),
    "debug": (False,),
}
SAVING: Final = frozenset(
    getattr(torch.utils.checkpoint.CheckpointPolicy, name)
    for name in ("MUST_SAVE", "PREFER_SAVE", "MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD")
    if hasattr(torch.utils.checkpoint.CheckpointPolicy, name)
)


class SelectiveContexts(Value):
    """The pair of context managers that `create_selective_checkpoint_contexts` returns, for its `policy`."""

    python_types = (tuple,)
    __slots__ = ("policy",)

    def __init__(self, policy: Value) -> None:
        super().__init__()
        self.policy = policy


@handles(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def create_selective_checkpoint_contexts(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation=False)`."""
    if len(args) + ("policy_fn_or_list" in kwargs) == 0:
        refuse(tr, torch.utils.checkpoint.create_selective_checkpoint_contexts, args, kwargs)
    return SelectiveContexts(args[0] if args else kwargs["policy_fn_or_list"])


@dataclass(frozen=True)
class Policy:
    """A selective policy of torch, asked about an ATen operator and its result."""

    asked: Any

    def __call__(self, op: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether the result is saved."""
        if op in torch.utils.checkpoint.SAC_IGNORED_OPS:
            return False
        about = torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=result)
        answer = self.asked(about, op, *args, **kwargs)
        return answer if isinstance(answer, bool) else answer in SAVING


@dataclass(frozen=True)
class _Call:
    """The arguments of one call of `checkpoint`."""

    function: Value
    args: Args
    kwargs: Kwargs
    options: Mapping[str, Value]
    preserves: bool

    @property
    def reentrant(self) -> bool:
        return self.options["use_reentrant"].is_none() or bool(self.options["use_reentrant"].as_constant())

    @property
    def requires_grad(self) -> bool:
        """Whether an argument does; those inside of others do not count."""
        return any(fake.requires_grad for fake in self.tensors)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The fakes of the arguments that are tensors."""
        return [one.fake for one in self.args if isinstance(one, TensorValue)]

    @property
    def has_contexts(self) -> bool:
        given = self.options["context_fn"]
        return not (given.is_constant() and given.as_constant() is torch.utils.checkpoint.noop_context_fn)


@handles(torch.utils.checkpoint.checkpoint)
def checkpoint(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`checkpoint(function, *args, use_reentrant, context_fn, determinism_check, debug, early_stop, **kwargs)`."""
    if tr.facts.body.level:  # torch rejects hooks on saved tensors there
        raise GraphBreak(OPTIONS, "it is called under a transform")
    call = _arguments(tr, args, kwargs)
    saves = _policy(tr, call.options["context_fn"]) if call.has_contexts else None
    if call.options["use_reentrant"].is_none():
        tr.journal.record_call(warn_of_default)
    if not _records():
        return _without_gradients(tr, call)
    return _Body(tr, call, saves).result()


def _records() -> bool:
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _without_gradients(tr: Tracer, call: _Call) -> Value:
    """Call the function, which nothing runs again."""
    if call.reentrant and not call.requires_grad:
        tr.journal.record_call(warn_of_no_gradients)
    result = tr.call(call.function, call.args, call.kwargs)
    return _as_reentrant(tr, result, call, None, ()) if call.reentrant else result


def _arguments(tr: Tracer, args: Args, kwargs: Kwargs) -> _Call:
    if not args:
        if "function" in kwargs:
            raise GraphBreak(OPTIONS, "the function is given by name")
        refuse(tr, torch.utils.checkpoint.checkpoint, args, kwargs)
    options = {name: kwargs[name] if name in kwargs else tr.constant(default) for name, default in DEFAULTS.items()}
    rest = {name: one for name, one in kwargs.items() if name not in options}
    preserves = rest.pop(PRESERVES).bool_(tr) if PRESERVES in rest else True
    for name, accepted in WITHOUT_EFFECT.items():
        if name in options and not (options[name].is_constant() and options[name].as_constant() in accepted):
            raise GraphBreak(OPTIONS, f"{name} is {options[name].describe()}")
    if not options["use_reentrant"].is_constant():
        raise GraphBreak(OPTIONS, f"use_reentrant is {options['use_reentrant'].describe()}")
    if not unstable.saved_tensors_hooks_is_enabled():
        raise GraphBreak(OPTIONS, "saved-tensor hooks are disabled")
    call = _Call(args[0], args[1:], rest, options, preserves)
    if call.reentrant:
        _check_reentrant(call)
    return call


def _check_reentrant(call: _Call) -> None:
    if call.kwargs or call.has_contexts:
        raise GraphBreak(OPTIONS, "use_reentrant=True with keywords, or a context_fn")
    if _records() and not call.requires_grad:
        raise GraphBreak(REENTRANT, "no argument requires a gradient")


def warn_of_default() -> None:
    """Give torch's warning about the default of `use_reentrant`, before an argument that torch rejects."""
    with suppress(ValueError):
        torch.utils.checkpoint.checkpoint(None, unexpected=None)


def warn_of_no_gradients() -> None:
    """Give torch's warning about a reentrant checkpoint without an argument that requires a gradient."""
    with torch.no_grad():
        torch.utils.checkpoint.checkpoint(_nothing, use_reentrant=True)


def _nothing() -> None: ...


def _policy(tr: Tracer, context_fn: Value) -> Policy:
    """Return the policy of the contexts that `context_fn` makes, which is called while tracing if it has to be."""
    try:
        with tr.journal.nested("context_fn"):
            made = tr.call(context_fn, (), {})
    except MutationRefused as error:
        raise GraphBreak(CONTEXT, str(error)) from error
    if not isinstance(made, SelectiveContexts):
        raise GraphBreak(CONTEXT, made.describe())
    policy = _existing(tr, made.policy)
    contexts: Any = None
    if policy is not None:
        try:
            contexts = torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
        except (TypeError, ValueError) as error:
            raise GraphBreak(OPTIONS, str(error)) from error
    elif (maker := _existing(tr, context_fn)) is not None:
        contexts = maker()  # it has no effects: the trace of it has made none
    asked = getattr(contexts[0], "policy_fn", None) if contexts else None
    if asked is None:
        raise GraphBreak(CONTEXT, made.policy.describe())
    return Policy(asked)


def _existing(tr: Tracer, value: Value) -> Any:
    """Return a function that is older than the trace, or a list of operators; None for other objects."""
    if isinstance(value, FunctionValue) and not value.made:
        value.guard_identity(tr)
        return value.function
    return value.as_plain() if value.python_type() is list else None


class _Body:
    """The function of a checkpoint, and what its operations do."""

    def __init__(self, tr: Tracer, call: _Call, saves: Policy | None) -> None:
        self.tr = tr
        self.call = call
        self.builder = tr.builder
        self.checkpoint = self.builder.new_checkpoint(saves, call.reentrant)
        #: The fakes that autograd saves, and their versions then.
        self.saved: list[tuple[torch.Tensor, int]] = []

    def result(self) -> Value:
        """Trace the function and return its result; breaks the graph where eager mode's recomputation would be seen."""
        body = self.tr.facts.body
        body.reentrant += self.call.reentrant
        try:
            with (
                self.builder.within(self.checkpoint),
                self.tr.journal.nested("a checkpointed function"),
                torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved),
            ):
                result = self.tr.call(self.call.function, self.call.args, self.call.kwargs)
        except MutationRefused as error:
            raise GraphBreak(EFFECT, str(error)) from error
        finally:
            body.reentrant -= self.call.reentrant
        nodes = self._nodes()
        outside = self._outside(nodes)
        if self.saved or self.call.reentrant:
            self._check_effects(nodes, outside)
        if self.saved:
            self.builder.recomputed_from(outside)
        return _as_reentrant(self.tr, result, self.call, frozenset(nodes), outside) if self.call.reentrant else result

    def _pack(self, saved: torch.Tensor) -> torch.Tensor:
        self.saved.append((saved, saved._version))
        return saved

    def _nodes(self) -> list[fx.Node]:
        """Return the nodes that the function has recorded, which are the last ones."""
        return list(itertools.takewhile(self.builder.is_within(self.checkpoint), reversed(self.builder.graph.nodes)))

    def _outside(self, nodes: Sequence[fx.Node]) -> list[torch.Tensor]:
        """Return the tensors that the function reads and has not made."""
        inside = {*nodes}
        used = dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside)
        return [*self.call.tensors, *(fake for one in used for fake in tensors_in(fake_of_node(one)))]

    def _check_effects(self, nodes: Sequence[fx.Node], outside: Sequence[torch.Tensor]) -> None:
        older = {storage_id(fake) for fake in outside if fake.layout is torch.strided}
        for node in nodes:
            effects, name = effects_of(node), str(node.target)
            written = [fake for fake in effects.written if fake.layout is torch.strided]
            if effects.external or any(storage_id(fake) in older for fake in written):
                raise GraphBreak(EFFECT, name)
            if effects.random and not self.call.preserves:
                raise GraphBreak(RANDOM, name)
        if any(saved._version != version for saved, version in self.saved):
            raise GraphBreak(SAVED_CHANGES)


def _as_reentrant(tr: Tracer, result: Value, call: _Call, inside: frozenset[fx.Node] | None, outside: Fakes) -> Value:
    """Return the result as an autograd function returns it, arguments as views; breaks where that would differ.

    `inside` are the nodes that the function has recorded, None without gradients; `outside` the tensors that it reads.
    """
    if isinstance(result, TensorValue):
        found: Sequence[Value] = [result]
    elif result.python_type() is tuple:
        found = result.unpack(tr)
    else:
        raise GraphBreak(REENTRANT, f"it returns {result.describe()}")
    given = call.tensors
    older = [fake for fake in outside if not _is_among(fake, given)]
    for one in found:
        captured = isinstance(one, TensorValue) and inside is not None and one.as_proxy() not in inside
        if not _is_own(one, given, older, captured):
            raise GraphBreak(REENTRANT, f"it returns {one.describe()}")
    made = [_as_view(tr, one, given) for one in found]
    return made[0] if isinstance(result, TensorValue) else TupleValue(made)


def _is_own(result: Value, given: Fakes, older: list[torch.Tensor], captured: bool) -> bool:
    """Whether a result is a constant, or an argument, a view of one, or new; a new one is older than the next."""
    if not isinstance(result, TensorValue):
        return result.is_constant()
    fake = result.fake
    expected = _records() and (fake.is_floating_point() or fake.is_complex())
    if expected != fake.requires_grad or any(share_storage(fake, other) for other in older):
        return False
    if not any(share_storage(fake, other) for other in given):
        older.append(fake)
    return not captured or _is_among(fake, given)


def _is_among(fake: torch.Tensor, others: Fakes) -> bool:
    return any(fake is one for one in others)


def _as_view(tr: Tracer, result: Value, given: Fakes) -> Value:
    """Return a view of an argument; other results as they are."""
    is_argument = isinstance(result, TensorValue) and _is_among(result.fake, given)
    return tr.call_torch("view_as", (result, result), {}) if is_argument else result
