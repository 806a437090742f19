"""The user's stack behind a call of torch: its lines, and the modules whose `forward` is running."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType

import torch

from framesmith_aot.torch_adapter import unstable
from framesmith_guards import Location
from framesmith_guards.stacks import is_own

#: The calls of modules: each has a frame of this code, in which `self` is the module.
_MODULE_CALL = getattr(unstable.call_impl, "__code__", None)


def stack_of_user(last: FrameType) -> tuple[Location | None, list[torch.nn.Module]]:
    """Return the location of the present call and the modules around it, outermost first.

    Only frames inside of `last` count, and for the location only those outside of torch and of these packages.
    """
    frames: list[FrameType] = []
    modules: list[torch.nn.Module] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not last:
        if frame.f_code is _MODULE_CALL:
            modules.append(frame.f_locals["self"])
        else:
            name = str(frame.f_globals.get("__name__"))
            if name.partition(".")[0] != "torch" and not is_own(name):
                frames.append(frame)
        frame = frame.f_back
    at: Location | None = None
    for one in reversed(frames):
        at = Location(one.f_code.co_filename, one.f_lineno, one.f_code.co_qualname, at)
    return at, modules[::-1]


def module_stack(
    modules: list[torch.nn.Module], paths: Mapping[int, str]
) -> dict[str, tuple[str, type[torch.nn.Module]]]:
    """Return the entry `nn_module_stack` of a node: (path, class) of each module, by path; `paths` by the id."""
    known = ((paths.get(id(one)), type(one)) for one in modules)
    return {path: (path, cls) for path, cls in known if path is not None}
