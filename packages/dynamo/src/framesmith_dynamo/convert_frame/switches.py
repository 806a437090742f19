"""The effect of torch's switches on a frame for which no entry applies: see Note [Switches]."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, cast

from framesmith_dynamo.admission.frame_policy import disable
from framesmith_dynamo.torch_switches import decorators, settings, stances
from framesmith_frames import SKIP, Entry, FrameInfo
from framesmith_guards import LocalSource, explain

if TYPE_CHECKING:
    from framesmith_dynamo.convert_frame.automatic_dynamic import History


def answer_of_marks(info: FrameInfo) -> SKIP | None:
    """Return the answer for a function marked by `torch.compiler.disable` or `leaf_function`; None for others.

    Its callees are not compiled either; with `recursive=False` they are, and the function inside torch's wrapper is
    not.
    """
    function = cast(FunctionType, info.function)
    mark = decorators.disabled(function)
    if mark is None:
        return SKIP("made with leaf_function", recursive=True) if decorators.is_leaf(function) else None
    inner = mark.inner.__func__ if isinstance(mark.inner, MethodType) else mark.inner
    if not mark.calls_too and isinstance(inner, FunctionType):
        disable(inner.__code__, mark.reason)
    return SKIP(mark.reason, recursive=mark.calls_too)


def why_not_by_stance(stance: str, info: FrameInfo, known: Sequence[Entry]) -> str | None:
    """Return why the stance makes a call, for which none of the `known` entries applies, run eagerly; or None.

    Raises StanceForbids where the stance or the configuration forbids compiling.
    """
    if stance not in stances.STANCES:
        raise stances.StanceForbids(f"there is no stance {stance!r}: one of {', '.join(sorted(stances.STANCES))}")
    if stance == stances.EAGER_ON_RECOMPILE:
        return f"the stance of torch.compile is {stance!r}"
    if stance == stances.FAIL_ON_RECOMPILE:
        raise stances.StanceForbids(
            f"{_would_compile(info)}, and the stance of torch.compile is {stance!r}{_why(info, known)}"
        )
    if known and settings.setting("error_on_recompile", False):
        said = "torch._dynamo.config.error_on_recompile is set"
        raise stances.StanceForbids(f"{_would_compile(info)}, and {said}{_why(info, known)}")
    return None


def _would_compile(info: FrameInfo) -> str:
    code = info.code
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) would be compiled"


def _why(info: FrameInfo, known: Sequence[Entry]) -> str:
    return f": {explain(known, info)[0]}" if known else ": it has not been compiled yet"


def note_call(history: History, info: FrameInfo) -> None:
    """Record the sizes and numbers of a call that runs eagerly, so that changed ones are symbols in the next."""
    for name, found in zip(info.code.co_varnames, info.arguments, strict=False):
        history.observe(found, LocalSource(name))
