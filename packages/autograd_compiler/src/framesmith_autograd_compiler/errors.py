"""The errors this package raises on purpose."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_guards import warn_user

OnFailure = Callable[[str, Exception], object]
"""Is told of a failure of the compiler: where it was, and the error. What it raises reaches the caller of the pass."""


class AutogradCompilerError(RuntimeError):
    """Base of every deliberate error of this package."""


class CaptureUnsupported(AutogradCompilerError):
    """The backward pass cannot be captured: it runs in the engine instead. Says what and why."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}; the autograd engine runs this backward pass")
        self.what = what
        self.why = why


class CompilerFailed(AutogradCompilerError):
    """`compiler_fn` raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause


def warn_of_failure(where: str, error: Exception) -> None:
    """What a failure of the compiler costs when nobody else is told of it: a warning."""
    warn_user(UserWarning(f"{where} is not compiled: {type(error).__name__}: {error}"))
