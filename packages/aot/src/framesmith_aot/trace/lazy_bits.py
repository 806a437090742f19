"""Writes of a functional graph to memory with lazy conjugate or negative bits.

Note [Lazy bits of functional values]: a wrapper and its value have the same conjugate and negative bits, until an
operator writes to the memory: functional operators return values without bits, and a view's inverse (`conj` of the
written value) may return one with bits. The numbers are right, but the next view is made by the wrapper's bits (`imag`
of a conjugate: `view_as_real` of its conjugate), and torch refuses it on the value. So after each write the value of
the wrapper that owns the memory gets the wrapper's bits, and values of later views are made of it; the view that was
written to exists already, and gets its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from framesmith_aot.trace import functional
from framesmith_aten.checks.plain_tensors import with_bits_of


class Bits:
    """The wrappers of a graph that has lazy bits: owners of memory, and views."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[torch.Tensor, int]] = {}
        self._views: dict[int, tuple[torch.Tensor, int]] = {}
        self._has_lazy = False

    def note(self, wrapper: torch.Tensor) -> None:
        self._has_lazy |= wrapper.is_conj() or wrapper.is_neg()
        wrappers = self._views if wrapper._is_view() else self._owners
        wrappers.setdefault(id(wrapper), (wrapper, functional.mutation_count(wrapper)))

    def restore(self) -> None:
        """Repair values after an operation: see Note [Lazy bits of functional values]."""
        if not self._has_lazy:
            return
        for wrappers, give in ((self._owners, functional.replace_value), (self._views, functional.show_value)):
            for key, (wrapper, before) in wrappers.items():
                if functional.mutation_count(wrapper) != before:
                    _give_bits(wrapper, give)
                    wrappers[key] = (wrapper, functional.mutation_count(wrapper))


def _give_bits(wrapper: torch.Tensor, give: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    value = functional.current_value(wrapper)
    if (value.is_conj(), value.is_neg()) == (wrapper.is_conj(), wrapper.is_neg()):
        return
    with functional.below():
        stored = value.resolve_conj().resolve_neg()
        stored = stored.conj_physical() if wrapper.is_conj() else stored
        stored = stored.neg() if wrapper.is_neg() else stored
        result = with_bits_of(stored, wrapper)
    give(wrapper, result)
