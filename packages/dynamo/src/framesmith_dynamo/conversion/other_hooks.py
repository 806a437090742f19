"""Living beside torch.compile's own frame hook: code made here is not for it to compile."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from framesmith_dynamo.residual.continuations import is_continuation

# torch's C part of its frame hook; there is nothing to do for a torch without it.
_HOOK: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def keep_from_torch(code: CodeType) -> None:
    """Mark residual code and the continuations in it: torch.compile around them leaves their frames alone.

    What they call, it may still compile.
    """
    made = [code, *(c for c in code.co_consts if isinstance(c, CodeType) and is_continuation(c))]
    if _HOOK is not None and hasattr(_HOOK, "set_code_exec_strategy"):
        strategy = _HOOK._FrameExecStrategy(_HOOK._FrameAction.SKIP, _HOOK._FrameAction.DEFAULT)
        for each in made:
            _HOOK.set_code_exec_strategy(each, strategy)
