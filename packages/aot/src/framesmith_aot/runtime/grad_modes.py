"""The modes of gradients around calls of graphs: what `torch.no_grad` and `enable_grad` do, in a fifth of the time.

Torch's own take calls of two Python classes each, and can be decorators, which nothing here needs.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from framesmith_aot.torch_adapter import unstable


class _GradMode:
    """A context that sets the mode, and puts back what was set before."""

    __slots__ = ("before",)
    wanted: ClassVar[bool]

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        unstable.set_grad_enabled(self.wanted)

    def __exit__(self, *_: object) -> None:
        unstable.set_grad_enabled(self.before)


class NoGrad(_GradMode):
    """As `torch.no_grad`."""

    __slots__ = ()
    wanted = False


class EnableGrad(_GradMode):
    """As `torch.enable_grad`."""

    __slots__ = ()
    wanted = True
