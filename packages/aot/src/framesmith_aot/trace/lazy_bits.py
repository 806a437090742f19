"""Memory of lazy conjugates and negatives, written to by a functional graph.

Note [Lazy bits of functional values]: a wrapper says whether its elements are the conjugates of what is in memory, and
so does its value, until an operator writes to the memory: functional operators give plain results, whatever their
operands are, and a view's inverse (`conj` of what was written) may give a lazy one. The numbers are right, but the next
view is made as the wrapper is, not as the value is (`imag` of a conjugate: `view_as_real` of its conjugate), and is
refused. So after each write the value of what owns the memory is given the bits of its wrapper, and values of views are
made of it; that of the view which was written to is there already, and is given its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from framesmith_aot.trace import functional
from framesmith_aten.checks.plain_tensors import with_bits_of


class Bits:
    """The wrappers of a graph, for as long as a lazy one is among them: those that own their memory, and views."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[torch.Tensor, int]] = {}
        self._views: dict[int, tuple[torch.Tensor, int]] = {}
        self._has_lazy = False

    def note(self, wrapper: torch.Tensor) -> None:
        """A wrapper that the graph handles."""
        self._has_lazy |= wrapper.is_conj() or wrapper.is_neg()
        wrappers = self._views if wrapper._is_view() else self._owners
        wrappers.setdefault(id(wrapper), (wrapper, functional.mutation_count(wrapper)))

    def restore(self) -> None:
        """After an operation: see Note [Lazy bits of functional values]."""
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
