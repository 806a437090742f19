"""`torch.autograd.functional` over the transforms of torch.func, which compute the same derivatives.

After torch/autograd/functional.py, which calls the autograd engine. Arguments of which torch may complain, and results
whose histories would differ, are refused: torch's own function is called then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: With two results or three, as torch's annotation cannot say.
pulling: Any = torch.func.vjp


def refuse_functional(why: str) -> None:
    """Has a handler, which breaks the graph: torch's own function is called."""
    raise NotImplementedError(why)


def vjp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """`torch.autograd.functional.vjp`: the results of a function, and gradients for a cotangent."""
    given = _taken(inputs, create_graph, strict)
    outputs, pull = pulling(_checked(func), *given)
    gradients = pull(_cotangent(outputs, v))
    return _given_back(outputs, create_graph), _like_inputs(gradients, inputs, create_graph)


def jvp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """`torch.autograd.functional.jvp`: the results of a function, and their changes, by two gradients."""
    given = _taken(inputs, create_graph, strict)
    outputs, pull = pulling(_checked(func), *given)
    zeros = _zeros_like(outputs)
    changes = pulling(lambda cotangent: pull(cotangent), zeros)[1](_tangent(inputs, given, v))[0]
    return _given_back(outputs, create_graph), _given_back(changes, create_graph)


def vhp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """`torch.autograd.functional.vhp`: the value of a function, and a vector times its Hessian."""
    given = _taken(inputs, create_graph, strict)
    _, pull, outputs = pulling(lambda *args: _gradient(func, args), *given, has_aux=True)
    gradients = pull(_tangent(inputs, given, v))
    return _given_back(outputs, create_graph), _like_inputs(gradients, inputs, create_graph)


def hvp(func: Any, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """`torch.autograd.functional.hvp`: the value of a function, and its Hessian times a vector."""
    given = _taken(inputs, create_graph, strict)
    _, pull, outputs = pulling(lambda *args: _gradient(func, args), *given, has_aux=True)
    zeros = tuple([torch.zeros_like(one) for one in given])
    applied = pulling(lambda cotangent: pull(cotangent), zeros)[1](_tangent(inputs, given, v))[0]
    return _given_back(outputs, create_graph), _like_inputs(applied, inputs, create_graph)


def jacobian(
    func: Any,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """`torch.autograd.functional.jacobian`: one for each result and each input."""
    if strategy != "reverse-mode":
        refuse_functional("a Jacobian in forward mode")
    given = _taken(inputs, create_graph, strict)
    return _jacobian(func, inputs, given, create_graph)


def hessian(
    func: Any,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """`torch.autograd.functional.hessian`: one for each pair of inputs."""
    if outer_jacobian_strategy != "reverse-mode":
        refuse_functional("a Hessian in forward mode")
    given = _taken(inputs, create_graph, strict)
    if not isinstance(inputs, tuple):
        return _jacobian(lambda *args: _gradient(func, args)[0][0], inputs, given, create_graph)
    return _jacobian(lambda *args: _gradient(func, args)[0], inputs, given, create_graph)


def _taken(inputs: Any, create_graph: bool, strict: bool) -> tuple[torch.Tensor, ...]:
    """Return the inputs as a tuple; without their histories, if the results have none."""
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if strict or (create_graph and not torch.is_grad_enabled()):
        refuse_functional("strict, or create_graph where gradients are switched off")
    for one in given:
        if not isinstance(one, torch.Tensor):
            refuse_functional("an input that is no tensor")
        if create_graph and not one.requires_grad:
            refuse_functional("create_graph for an input that requires no gradient")
    return given if create_graph else tuple([one.detach() for one in given])


def _checked(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, refused where it gives other things than a tensor or a tuple of them."""

    def function(*args: torch.Tensor) -> Any:
        results = func(*args)
        for one in results if isinstance(results, tuple) else (results,):
            if not isinstance(one, torch.Tensor):
                refuse_functional("a result that is no tensor")
        return results

    return function


def _given_back(results: Any, create_graph: bool) -> Any:
    if create_graph:
        return results
    return results.detach() if isinstance(results, torch.Tensor) else tuple([one.detach() for one in results])


def _like_inputs(gradients: Sequence[torch.Tensor], inputs: Any, create_graph: bool) -> Any:
    return _given_back(tuple(gradients) if isinstance(inputs, tuple) else gradients[0], create_graph)


def _zeros_like(results: Any) -> Any:
    if isinstance(results, torch.Tensor):
        return torch.zeros_like(results)
    return tuple([torch.zeros_like(one) for one in results])


def _check_sizes(given: Sequence[Any], of: Sequence[torch.Tensor]) -> None:
    if len(given) != len(of):
        refuse_functional("another number of vectors")
    for one, other in zip(given, of, strict=True):
        if not isinstance(one, torch.Tensor) or one.shape != other.shape:
            refuse_functional("a vector of another size")


def _cotangent(outputs: Any, v: Any) -> Any:
    """Return the cotangents in the structure of the results; ones for a result of one element."""
    of = outputs if isinstance(outputs, tuple) else (outputs,)
    if v is None:
        if len(of) != 1 or of[0].numel() != 1:
            refuse_functional("no vector for several elements")
        vector = (torch.ones_like(of[0]),)
    else:
        vector = v if isinstance(v, tuple) else (v,)
    _check_sizes(vector, of)
    return vector if isinstance(outputs, tuple) else vector[0]


def _tangent(inputs: Any, given: tuple[torch.Tensor, ...], v: Any) -> tuple[torch.Tensor, ...]:
    """Return a tangent for each input; ones for an input of one element."""
    if v is None:
        if len(given) != 1 or given[0].numel() != 1:
            refuse_functional("no vector for several elements")
        return (torch.ones_like(given[0]),)
    vector = v if isinstance(v, tuple) else (v,)
    _check_sizes(vector, given)
    return tuple([one.detach() for one in vector])


def _gradient(func: Any, args: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return the gradients of a function whose result has one element, and this result: the function is called once."""
    outputs, pull = pulling(_checked(func), *args)
    if not isinstance(outputs, torch.Tensor) or outputs.numel() != 1:
        refuse_functional("a Hessian of a function of several elements")
    gradients: tuple[torch.Tensor, ...] = pull(torch.ones_like(outputs))
    return gradients, outputs


def _jacobian(func: Callable[..., Any], inputs: Any, given: tuple[torch.Tensor, ...], create_graph: bool) -> Any:
    """Return the Jacobians, for each result a tuple for tuples of inputs, by a pull-back of all one-hot cotangents."""
    outputs, pull = pulling(_checked(func), *given)
    if isinstance(outputs, torch.Tensor):
        return _like_inputs(_rows(outputs, (outputs,), 0, lambda one: pull(one[0])), inputs, create_graph)
    found = [_rows(one, outputs, at, pull) for at, one in enumerate(outputs)]
    return tuple([_like_inputs(one, inputs, create_graph) for one in found])


def _rows(
    output: torch.Tensor, outputs: tuple[torch.Tensor, ...], at: int, pull: Callable[..., Any]
) -> list[torch.Tensor]:
    """Return the Jacobians of one result."""
    others = [torch.zeros_like(one) for one in outputs]

    def row(cotangent: torch.Tensor) -> Any:
        return pull((*others[:at], cotangent, *others[at + 1 :]))

    count = output.numel()
    basis = torch.eye(count, dtype=output.dtype, device=output.device).reshape(count, *output.shape)
    return [one.reshape(*output.shape, *one.shape[1:]) for one in torch.vmap(row)(basis)]
