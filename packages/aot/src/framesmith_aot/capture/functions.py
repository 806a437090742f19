"""`aot_function` and `aot_module`: functions of any arguments, compiled for what guards say of them.

Note [Entries]: a compiled function has one entry for each kind of arguments it was called with. Guards of
`framesmith_guards` say whether an entry applies: the metadata of tensors, constants by value, other objects by
identity, which tensors are the same or overlap, torch's modes. What the function finds by itself (globals, closures) is
not guarded, as in torch's functions of these names: pass it, or compile with framesmith.compile.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch import fx

from framesmith_aot.capture.backends import GraphBackend, compiler_of
from framesmith_aot.capture.graph_modules import NodeByNode
from framesmith_aot.capture.recorded import LEAVES, Recorded, Results, record, source_of
from framesmith_aot.compile import compile_graph
from framesmith_aot.errors import AotError, AotUnsupported
from framesmith_aot.runtime.compiled import CompiledGraph
from framesmith_aot.torch_adapter import unstable
from framesmith_aten.contract import AssumptionFailed, OnError
from framesmith_aten.tracing.decompositions import Lowers, lowers_nothing
from framesmith_guards import (
    AttrSource,
    CheckProgram,
    Guard,
    GuardError,
    Source,
    TensorSpec,
    compile_guards,
    explain,
    is_constant,
    state_guards,
)
from framesmith_guards.symbolic_guards import shape_guards

#: Entries of one function; further kinds of arguments are an error, see `TooManyEntries`.
LIMIT: Final = 64


class TooManyEntries(AotError):
    """A compiled function was called with more kinds of arguments than it may have entries for."""


@dataclass(frozen=True)
class Entry:
    """A compiled graph, the guards of the calls it is for, and the positions of its inputs among the leaves."""

    check: CheckProgram
    graph: CompiledGraph
    module: fx.GraphModule
    takes: tuple[int, ...]
    results: Results

    def applies(self, leaves: list[Any]) -> bool:
        """Whether the entry is for a call with these arguments."""
        return self.check((leaves,), cast("FunctionType", _no_globals))


@dataclass(frozen=True)
class _Call:
    """A call as guards explain it."""

    arguments: tuple[object, ...]
    function: FunctionType


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `aot_function`, as it documents them."""

    backend: GraphBackend
    lowers: Lowers
    dynamic: bool
    memory_budget: float
    on_error: OnError | None


class AotFunction:
    """A function that is recorded and compiled at its first call with arguments of a kind: see Note [Entries].

    `entries` are those there are, newest first.
    """

    def __init__(self, function: Callable[..., Any], options: Options, modules: Mapping[int, str]) -> None:
        self._function = function
        self._options = options
        self._modules = modules
        self._entries: dict[Any, tuple[Entry, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = unstable.tree_flatten((args, kwargs))
        for entry in self._entries.get(tree, ()):
            if entry.applies(leaves):
                break
        else:
            entry = self._compile(leaves, tree)
        try:
            return entry.results.of(entry.graph.function(*(leaves[at] for at in entry.takes)))
        except AssumptionFailed:
            return self._function(*args, **kwargs)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for each in self._entries.values() for entry in each)

    def explain(self, *args: Any, **kwargs: Any) -> str | None:
        """Return why no entry applies to these arguments, against the nearest; None if one does."""
        leaves, tree = unstable.tree_flatten((args, kwargs))
        rows = explain(self._entries.get(tree, ()), _Call((leaves,), cast("FunctionType", _no_globals)))
        if not rows:
            return "nothing is compiled for arguments of this structure"
        return "; ".join(rows[0].reasons) or None

    def _compile(self, leaves: list[Any], tree: Any) -> Entry:
        if len(self.entries) >= LIMIT:
            why = self.explain(*unstable.tree_unflatten(leaves, tree)[0], **unstable.tree_unflatten(leaves, tree)[1])
            raise TooManyEntries(
                f"{self._function!r} was compiled for {LIMIT} kinds of arguments, and is called with another ({why}); "
                "pass dynamic=True for changing sizes, and tensors for changing numbers"
            )
        entry = self._new_entry(leaves, tree)
        with self._lock:
            self._entries[tree] = (entry, *self._entries.get(tree, ()))
        return entry

    def _new_entry(self, leaves: list[Any], tree: Any) -> Entry:
        options = self._options
        guards = [*_guards_of(leaves)]  # before the function changes its arguments
        found = record(self._function, leaves, tree, modules=self._modules, dynamic=options.dynamic)
        graph = compile_graph(
            found.module,
            [one.example for one in found.given],
            compiler=compiler_of(options.backend),
            lowers=options.lowers,
            memory_budget=options.memory_budget,
            on_error=options.on_error,
        )
        guards += _guards_of_tensors(found, graph)
        check = compile_guards([*state_guards(), *guards], (LEAVES.local,))
        positions = {id(one): at for at, one in reversed([*enumerate(leaves)])}
        return Entry(check, graph, found.module, tuple(positions[id(one.real)] for one in found.given), found.results)


def _no_globals() -> None:
    """Stand for the function whose globals guards may ask for: these guards ask for none."""


def _guards_of(leaves: Sequence[Any]) -> Iterator[Guard]:
    """Yield guards of the leaves that are no tensors, and of which tensors are the same."""
    first: dict[int, Source] = {}
    for at, value in enumerate(leaves):
        source = source_of(at)
        if isinstance(value, torch.Tensor):
            before = first.setdefault(id(value), source)
            if before is not source:
                yield Guard(source, "DUPLICATE_INPUT", before)
            continue
        try:
            yield Guard(source, "EQUALS_MATCH" if is_constant(value) else "ID_MATCH", value)
        except GuardError as error:
            what = f"an argument of type {type(value).__name__}"
            raise AotUnsupported("argument", what, "it can be neither compared nor held weakly") from error
    if len(first) > 1:
        one, *others = first.values()
        yield Guard(one, "NOT_ALIASED", tuple(others))


def _guards_of_tensors(found: Recorded, graph: CompiledGraph) -> Iterator[Guard]:
    """Yield guards of the metadata of tensors, of their sizes where these are symbolic, and of their memory."""
    for one in found.given:
        yield Guard(one.source, "TENSOR_MATCH", TensorSpec.of(one.real, like=one.example))
        if one.real.requires_grad:
            yield Guard(AttrSource(one.source, "is_leaf"), "BOOL_MATCH", one.real.is_leaf)
    env = found.fake_mode.shape_env
    if env is not None:
        yield from shape_guards(env, [(one.source, one.example) for one in found.given])
    for at in graph.overwritten:
        others = tuple(one.source for one in found.given if one is not found.given[at])
        if others:
            yield Guard(found.given[at].source, "NO_OVERLAP", others)


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Callable[..., Any],
    bw_compiler: Callable[..., Any] | None = None,
    *,
    inference_compiler: Callable[..., Any] | None = None,
    lowers: Lowers = lowers_nothing,
    dynamic: bool = False,
    memory_budget: float = 1.0,
    on_error: OnError | None = None,
) -> AotFunction:
    """Return `fn` compiled through ATen graphs of its forward and backward pass: see Note [Entries].

    A compiler takes a graph module and the fake tensors of its inputs, and returns a function of the same inputs, or a
    boxed one (`make_boxed`). `fw_compiler` gets forward graphs, and those of calls without gradients where
    `inference_compiler` is None; `bw_compiler` (`fw_compiler` where it is None) gets backward graphs when a gradient is
    first asked for. `dynamic`: sizes of tensors are symbols. The other arguments are those of `compile_graph`.

    `fn` takes and returns tensors, in tuples, lists and dicts, and anything else as constants. It runs once for each
    entry while it is recorded: its Python side effects happen then. Raises AotUnsupported where a flat graph cannot
    have its meaning.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if isinstance(fn, torch.nn.Module):
        raise TypeError("fn is a module, whose parameters are inputs too: use aot_module")
    backend = GraphBackend(fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler)
    return AotFunction(fn, Options(backend, lowers, dynamic, memory_budget, on_error), {})


class AotModule(torch.nn.Module):
    """A module whose `forward` is compiled, as a function of its parameters, buffers and arguments."""

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        super().__init__()
        self.compiled_module = module
        called = NodeByNode(module) if isinstance(module, fx.GraphModule) else module

        def functional(state: Mapping[str, torch.Tensor], training: Any, args: Any, kwargs: Any) -> Any:
            return torch.func.functional_call(called, dict(state), args, kwargs)

        def state() -> dict[str, torch.Tensor]:
            return {**dict(called.named_parameters()), **dict(called.named_buffers())}

        self._state = state  # `called` is no submodule: its parameters are those of `compiled_module`
        self._options = options
        self._compiled = AotFunction(functional, options, _paths(module))

    def __deepcopy__(self, memo: dict[int, Any]) -> AotModule:
        """Return a copy of the module, for which nothing is compiled."""
        made = AotModule(copy.deepcopy(self.compiled_module, memo), self._options)
        made.training = self.training
        return made

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries there are, newest first."""
        return self._compiled.entries

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        training = tuple(one.training for one in self.compiled_module.modules())
        return self._compiled(self._state(), training, args, kwargs)


def aot_module(
    module: torch.nn.Module,
    fw_compiler: Callable[..., Any],
    bw_compiler: Callable[..., Any] | None = None,
    *,
    inference_compiler: Callable[..., Any] | None = None,
    lowers: Lowers = lowers_nothing,
    dynamic: bool = False,
    memory_budget: float = 1.0,
    on_error: OnError | None = None,
) -> AotModule:
    """Return a module that runs `module` compiled, with the arguments of `aot_function`.

    Parameters and buffers are inputs of the graph, read from the module at each call: they may be replaced. The
    `training` flags of its modules are guarded, other attributes are not.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}; functions go to aot_function")
    backend = GraphBackend(fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler)
    return AotModule(module, Options(backend, lowers, dynamic, memory_budget, on_error))


def _paths(fn: Any) -> dict[int, str]:
    """Return the paths of a module's modules, by their ids."""
    named = fn.named_modules() if isinstance(fn, torch.nn.Module) else ()
    return {id(one): path or type(one).__name__ for path, one in named}
