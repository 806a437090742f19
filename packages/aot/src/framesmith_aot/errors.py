"""The errors and warnings of this package."""

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


class NotRecorded(AotUnsupported):
    """A function does what the graph of its calls of torch would not have."""

    def __init__(self, id: str, what: str, why: str) -> None:
        super().__init__(id, what, why, "framesmith.compile captures more; or run the function eagerly")


class DoubleBackwardError(AotError):
    """A second derivative of a compiled graph was asked for, and its graph cannot be replayed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"double backward through a compiled graph: {why}, so that its backward pass is not differentiable; "
            "run the function eagerly where second derivatives are needed"
        )


class AbsentGradientsError(AotError):
    """A Function asks which gradients are absent, and its graph cannot be replayed for those that are not."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "a torch.autograd.Function that does not materialize gradients gets none for some of its results in a "
            f"backward pass of a compiled graph: {why}; use all results, or run the function eagerly"
        )


class AbsentGradientsWarning(UserWarning):
    """A graph was replayed in eager mode, because a Function in it asks which gradients are absent."""

    def __init__(self) -> None:
        super().__init__(
            "a compiled graph was replayed in eager mode, because a torch.autograd.Function in it does not materialize "
            "gradients, and gets none for some of its results: right, but as slow as eager mode; use all results"
        )


class SecondDerivativeWarning(UserWarning):
    """A graph was replayed in eager mode for second derivatives."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "a compiled graph was replayed in eager mode for the gradients of its backward pass (create_graph=True), "
            f"which are not compiled: {why}; right, but as slow as eager mode"
        )
