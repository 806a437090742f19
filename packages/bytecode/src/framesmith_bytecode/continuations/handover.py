"""The call of a continuation in generated code."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_bytecode.codegen.codegen import Codegen
from framesmith_bytecode.continuations.continuation import Continuation, Parameter


def hand_over(
    codegen: Codegen,
    continuation: Continuation,
    load: Callable[[Parameter], object],
    leave: Callable[[], object] = lambda: None,
    make: Callable[[], object] | None = None,
) -> None:
    """Push the result of the continuation; `load` must push the argument for a parameter.

    The free variables of the continuation are variables of the code generated here, unless `make` pushes the function.
    `leave` emits instructions after all arguments are on the stack, when the caller needs its variables no more.
    """
    codegen.push_callable(make or (lambda: codegen.make_function(continuation.code, continuation.freevars)))
    for parameter in continuation.parameters:
        load(parameter)
    leave()
    codegen.call(len(continuation.parameters))
