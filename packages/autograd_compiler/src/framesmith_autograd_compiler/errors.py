"""The errors of this package, and the warning for a failure."""

from __future__ import annotations

from framesmith_guards import warn_user


class AutogradCompilerError(RuntimeError):
    """Base of every deliberate error of this package."""


class CaptureUnsupported(AutogradCompilerError):
    """The backward pass cannot be captured: the engine runs it."""

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
    """Warn of a failure of the compiler: the default `on_failure`."""
    warn_user(UserWarning(f"{where} is not compiled: {type(error).__name__}: {error}"))
