"""Grad modes around calls of graphs: `torch.no_grad` and `enable_grad` in a fifth of the time, without decorators."""

from __future__ import annotations

from typing import ClassVar

import torch

from framesmith_aot.torch_adapter import unstable


class _GradMode:
    """Sets the grad mode inside, restores it after."""

    __slots__ = ("before",)
    wanted: ClassVar[bool]

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        unstable.set_grad_enabled(self.wanted)

    def __exit__(self, *_: object) -> None:
        unstable.set_grad_enabled(self.before)


class NoGrad(_GradMode):
    __slots__ = ()
    wanted = False


class EnableGrad(_GradMode):
    __slots__ = ()
    wanted = True
