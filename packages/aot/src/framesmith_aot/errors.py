"""The errors this package raises on purpose; each says what, why and what to do."""

from __future__ import annotations


class AotError(RuntimeError):
    """Base of every deliberate error of this package."""


class AotUnsupported(AotError):
    """The graph cannot be compiled without changing its meaning: run it eagerly.

    `id` is stable and short (for tables and tests), `what` names the construct, `why` gives the
    reason and `hint` what the user can do.
    """

    def __init__(self, id: str, what: str, why: str, hint: str = "run this graph eagerly") -> None:
        super().__init__(f"{what}: {why} ({hint}) [{id}]")
        self.id = id
        self.what = what
        self.why = why
        self.hint = hint


class DoubleBackwardError(AotError):
    """The gradient of a compiled backward pass was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "double backward through a compiled graph: the compiled backward pass is not itself "
            "differentiable; run the function eagerly where second derivatives are needed"
        )
