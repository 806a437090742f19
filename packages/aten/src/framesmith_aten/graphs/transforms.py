"""Function transforms of torch as nodes of a torch-level graph: a call whose first argument is a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from traceback import clear_frames
from typing import Any, cast

import torch
from torch import fx
from torch.autograd import forward_ad

from framesmith_aten.fakes.light_torch import rebuilt, rebuilt_globals
from framesmith_aten.torch_adapter import unstable


class BodyInterpreter(fx.Interpreter):
    """Runs the graph that a node holds, and those held in it, operation by operation; errors stay as they are."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        held = super().get_attr(target, args, kwargs)
        return type(self)(held) if isinstance(held, fx.GraphModule) else held


def vmapped(
    body: Callable[..., tuple[torch.Tensor, ...]],
    in_dims: Sequence[int | None],
    out_dims: Sequence[int | None],
    randomness: str,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the tensors that `torch.vmap` of `body` gives for the operands: one dimension for each of both.

    Whatever surrounds the call (autograd, fakes, functional tensors) sees the operators on whole batches. Raises
    ValueError where torch would expand a result that is the same for all examples at a dimension it does not have.
    """

    run = function_of(body)

    def function(*examples: Any) -> tuple[torch.Tensor, ...]:
        found = run(*examples)
        for result, dim in zip(found, out_dims, strict=True):
            _check_dimension(result, dim)
        return found

    results: Any = tuple(out_dims)  # of which torch's annotation does not say that some may be None
    mapped = torch.vmap(function, tuple(in_dims), results, randomness)
    batches: tuple[torch.Tensor, ...] = mapped(*operands)
    return batches


def function_of(body: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the function of a body: of a module its `forward`, without hooks of all modules and FX's error report."""
    function: Callable[..., tuple[torch.Tensor, ...]] = body.forward if isinstance(body, fx.GraphModule) else body
    return function


def _check_dimension(result: torch.Tensor, dim: int | None) -> None:
    """Refuse a dimension that torch would insert outside of the sizes, without looking: it reads, and writes, there."""
    batched = unstable.maybe_get_level(result) == unstable.maybe_current_level()
    if dim is not None and not batched and not 0 <= dim <= result.dim():
        raise ValueError(f"a result that is the same for all examples has no dimension {dim}")


def unwrapped_batches(
    body: Callable[..., tuple[torch.Tensor, ...]], in_dims: Sequence[int | None], randomness: str, *operands: Any
) -> tuple[tuple[torch.Tensor, int | None], ...]:
    """Return the results of a body under `torch.vmap` as a rule for vmap gets them: batches, and their dimensions.

    The dimension is None for a result that is the same for all examples.
    """
    run = function_of(body)
    found: list[tuple[torch.Tensor, int | None]] = []

    def function(*examples: Any) -> tuple[()]:
        level = unstable.maybe_current_level()
        found.extend(unstable.unwrap_batch(result, level) for result in run(*examples))
        return ()

    torch.vmap(function, tuple(in_dims), (), randomness)(*operands)
    return tuple(found)


def differentiated(
    body: Callable[..., tuple[torch.Tensor, ...]], arguments: int, argnums: Sequence[int], *operands: Any
) -> tuple[torch.Tensor, ...]:
    """Return what `torch.func.grad_and_value` gives for a body: gradients, its first result, and its others.

    The first `arguments` of the operands are the function's own, of which `argnums` are those to differentiate; it
    captures the others.
    """
    captured, run = operands[arguments:], function_of(body)

    def function(*given: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        value, *others = run(*given, *captured)
        return value, tuple(others)

    gradients, (value, others) = _grad_and_value()(function, tuple(argnums), True, operands[:arguments], {})
    return (*gradients, value, *others)


class PullBack:
    """The function that `torch.func.vjp` returns, as a value of a graph: it maps cotangents to gradients."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        self.function = function


def with_pullback(
    body: Callable[..., tuple[torch.Tensor, ...]], arguments: int, argnums: Sequence[int], outputs: int, *operands: Any
) -> tuple[Any, ...]:
    """Return what `torch.func.vjp` gives for a body: its results, and the function of cotangents as a `PullBack`.

    The first `arguments` of the operands are the function's own, of which `argnums` are those to differentiate; it
    captures the others. The first `outputs` of the results have cotangents. Raises what torch raises.
    """
    function = _with_others(body, outputs, operands[arguments:])
    results, pullback, others = _vjp()(function, *operands[:arguments], argnums=tuple(argnums), has_aux=True)
    return (*results, *others, PullBack(pullback))


def pulled_back(
    pullback: PullBack, retain_graph: bool, create_graph: bool, *cotangents: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the gradients that a function of `torch.func.vjp` gives for cotangents. Raises what torch raises."""
    return pullback.function(cotangents, retain_graph=retain_graph, create_graph=create_graph)


def pushed_forward(
    body: Callable[..., tuple[torch.Tensor, ...]],
    arguments: int,
    argnums: Sequence[int],
    outputs: int,
    strict: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    """Return what `torch.func.jvp` gives for a body: its first `outputs` results, their tangents, its other results.

    The first `arguments` of the operands are the function's own; tangents of those in `argnums` follow; it captures the
    others. Raises what torch raises.
    """
    tangents, captured = operands[arguments:][: len(argnums)], operands[arguments + len(argnums) :]
    function = _with_others(body, outputs, captured)
    with _keys_restored():
        results, changes, others = unstable.jvp_with_argnums(
            function, operands[:arguments], tangents, tuple(argnums), strict=strict, has_aux=True
        )
    return (*results, *changes, *others)


def forward_tangent(body: Callable[..., tuple[torch.Tensor, ...]], duals: int, *operands: Any) -> tuple[Any, ...]:
    """Return the tangent of a body's result in `torch.func.jvp`, or None where it has none.

    The first operands are `duals` primals, their tangents follow; it captures the others. Raises what torch raises.
    """
    primals, tangents, captured = operands[:duals], operands[duals : 2 * duals], operands[2 * duals :]
    run, has_tangent = function_of(body), False

    def function(*given: Any) -> torch.Tensor:
        nonlocal has_tangent
        [result] = run(*given, *captured)
        has_tangent = forward_ad.unpack_dual(result).tangent is not None  # type: ignore[no-untyped-call]
        return result

    with _keys_restored():
        _, tangent = unstable.jvp_with_argnums(function, primals, tangents, None, has_aux=False)
    return (tangent if has_tangent else None,)


@contextmanager
def _keys_restored() -> Iterator[None]:
    """Context manager that restores the thread's dispatch keys if its body raises.

    Where a forward formula fails on fakes, torch prints a tensor for the message, which fails, too; the frames of that
    hold guards, which would set the keys to those inside a dispatch when the error is forgotten.
    """
    force: Any = unstable.ForceDispatchKeyGuard
    with force(unstable.keys_included(), unstable.keys_excluded()):
        try:
            yield
        except Exception as error:
            clear_frames(error.__traceback__)
            raise


def _with_others(
    body: Callable[..., tuple[torch.Tensor, ...]], outputs: int, captured: Sequence[Any]
) -> Callable[..., tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]]:
    """Return the function of a body that returns its first results and its others, as with `has_aux`."""
    run = function_of(body)

    def function(*given: Any) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        results = run(*given, *captured)
        return tuple(results[:outputs]), tuple(results[outputs:])

    return function


@cache
def _grad_and_value() -> Callable[..., Any]:
    """Return torch's own function of (function, argnums, has_aux, args, kwargs), without an import of torch._dynamo."""
    return _without_dynamo(unstable.grad_and_value)


@cache
def _vjp() -> Callable[..., Any]:
    """Return torch's own function of (function, *primals, argnums, has_aux), without an import of torch._dynamo."""
    return _without_dynamo(unstable.vjp_with_argnums)


def _without_dynamo(whole: Any) -> Callable[..., Any]:
    """Return a function of torch that computes gradients, rebuilt so that it does not import torch._dynamo.

    Where torch's code differs from the known one, it does; see Note [Rebuilt functions].
    """
    inner = getattr(whole, "__wrapped__", None)
    autograd, guarding = unstable.autograd_grad, unstable.without_saved_hooks
    if inner is None or autograd is None or guarding is None:
        return cast(Callable[..., Any], whole)
    names = rebuilt_globals(inner.__globals__)
    names["_autograd_grad"] = rebuilt(autograd, names)
    return cast(Callable[..., Any], guarding(rebuilt(inner, names)))
