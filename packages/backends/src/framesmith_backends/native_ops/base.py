"""Operators of our own, in torch's namespace `framesmith_backends`: what plans call where ATen has no such call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_guards.torch_adapter import OpOverload

_library = torch.library.Library("framesmith_backends", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(
    schema: str,
    run: Callable[..., Any],
    shape: Callable[..., Any] | None = None,
    key: str = "CPU",
    tags: Sequence[torch.Tag] = (),
) -> OpOverload:
    """The operator of this schema, which begins with its name: `run` where the dispatcher meets the key.

    `shape` gives results like its without their numbers; an operator without one cannot be traced.
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _library.impl(name, run, key)  # type: ignore[no-untyped-call]
    if shape is not None:
        _library.impl(name, shape, "Meta")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(torch.ops.framesmith_backends, name).default
    return made
