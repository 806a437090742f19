"""Automatic dynamic shapes: the sizes and numbers that earlier compilations of a code object have seen.

Everything is static at first. A size or number that differed at an earlier compilation is a symbol in the next, and
stays one.
"""

from __future__ import annotations

import math
import weakref
from types import CodeType
from typing import TYPE_CHECKING, Final, cast

import torch

from framesmith_aten.symbolic import LARGEST_SYMBOL
from framesmith_dynamo.convert_frame.dynamic_marks import is_marked, marks_of
from framesmith_dynamo.graph.symbols import STATIC, Dims
from framesmith_dynamo.torch_switches.settings import setting
from framesmith_guards import DictValueSource, ItemSource, LocalSource, StoredItemSource

if TYPE_CHECKING:
    from framesmith_guards import Source

#: Sources of items of containers.
_ITEMS: Final = (ItemSource, StoredItemSource, DictValueSource)
#: Stands for a size or number that has changed.
CHANGED: Final = None
#: Nesting depth to which containers of a call that runs eagerly are searched for sizes and numbers.
MAX_NESTING: Final = 4

Seen = list[int | None]


class History:
    """The values seen at each source when a code object was compiled: the policy for its next compilation."""

    def __init__(self, dynamic: bool | None) -> None:
        self._asked = dynamic
        #: By name and number of dimensions, since a source may alternate between two ranks.
        self.sizes: dict[tuple[str, int], Seen] = {}
        self.numbers: dict[str, int | float | None] = {}
        #: Names of tensors whose marks are ignored.
        self.ignored: set[str] = set()
        #: Messages about sizes and numbers that have become dynamic and are not reported yet.
        self.newly_dynamic: list[str] = []

    @property
    def dynamic(self) -> bool | None:
        """The `dynamic` option: the user's, else from torch's configuration."""
        if not setting("dynamic_shapes", True):
            return False
        return True if self._asked is None and not setting("assume_static_by_default", True) else self._asked

    @property
    def _is_automatic(self) -> bool:
        """Whether a changed size or number becomes a symbol."""
        return bool(setting("automatic_dynamic_shapes", True))

    @property
    def allows_symbols(self) -> bool:
        """Whether anything at all may be a symbol."""
        return self.dynamic is not False

    def observe_tensor(self, tensor: torch.Tensor, source: Source) -> Dims:
        """Record the sizes; return the symbolic dimensions: marked, changed, or all under `dynamic=True`."""
        if not self.allows_symbols:
            self._note_ignored_marks(tensor, source.name)
            return STATIC
        if tensor.layout is not torch.strided or tensor.dim() == 0:
            return STATIC
        marks = marks_of(tensor, source.name)
        if isinstance(tensor, torch.nn.Parameter):
            return STATIC
        changed = self._changed_dims(tensor, source.name)
        everything = range(tensor.dim()) if self.dynamic else ()
        symbolic = {*changed, *everything} - marks.static | marks.symbolic
        return Dims(frozenset(symbolic), marks.ranges, marks.unbacked, marks.required)

    def take_newly_dynamic(self) -> list[str]:
        """Return and clear the messages about new dynamic sizes and numbers."""
        messages, self.newly_dynamic = self.newly_dynamic, []
        return messages

    def _note_ignored_marks(self, tensor: torch.Tensor, name: str) -> None:
        """Report once for each name that its marks are ignored."""
        if name not in self.ignored and is_marked(tensor):
            self.ignored.add(name)
            self.newly_dynamic.append(f"{name} is marked, which has no effect: with dynamic=False all sizes stay")

    def _changed_dims(self, tensor: torch.Tensor, name: str) -> set[int]:
        if not self._is_automatic:
            return set()
        sizes = tuple(tensor.shape)
        seen = self.sizes.setdefault((name, len(sizes)), list(sizes))
        for dim, size in enumerate(sizes):
            if seen[dim] is not CHANGED and seen[dim] != size:
                self.newly_dynamic.append(
                    f"{name}.size({dim}) was {seen[dim]} when compiled, and is {size}: it becomes dynamic now"
                )
                seen[dim] = CHANGED
        return {dim for dim, size in enumerate(seen) if size is CHANGED}

    def observe_number(self, number: int | float, source: Source) -> bool:
        """Record a number; return whether it is a symbol: if it has changed, or is an argument under `dynamic=True`.

        0 and 1 never are, except a 1 in an object's state that has changed: a count. An attribute of an object is
        usually a setting: it is static until it has changed.
        """
        if not self.allows_symbols or setting(f"specialize_{type(number).__name__}", False):
            return False
        changed = self._is_automatic and self._has_changed(number, source)
        if changed and type(number) is int and number == 1 and not _is_argument(source):
            return True
        return (changed or (self.dynamic is True and _is_argument(source))) and not _is_special(number)

    def expect_changes(self, source: Source) -> None:
        """Record that the number at a source changes between calls, as though it had been seen to."""
        if self._is_automatic:
            self.numbers[source.name] = CHANGED

    def _has_changed(self, number: int | float, source: Source) -> bool:
        seen = self.numbers.setdefault(source.name, number)
        if seen is not CHANGED and (type(seen) is not type(number) or seen != number):
            self.newly_dynamic.append(
                f"{source.name} was {seen!r} when compiled, and is {number!r}: it becomes dynamic now"
            )
            self.numbers[source.name] = CHANGED
        return self.numbers[source.name] is CHANGED

    def observe(self, found: object, source: Source, depth: int = 0) -> None:
        """Record the sizes and numbers of an argument, and of its items, for a call that runs eagerly."""
        if isinstance(found, torch.nn.Parameter):
            return
        if isinstance(found, torch.Tensor):
            self._changed_dims(found, source.name)
        elif type(found) in (int, float):
            self.observe_number(cast(int, found), source)
        elif type(found) in (list, tuple, dict) and depth < MAX_NESTING:
            entries = found.items() if isinstance(found, dict) else enumerate(cast("list[object]", found))
            for key, item in entries:
                if type(key) in (int, str):
                    self.observe(item, ItemSource(source, key), depth + 1)


def _is_argument(source: Source) -> bool:
    """Whether a source is an argument, or an item of a container that is one, at any depth."""
    found: Source | None = source
    while isinstance(found, _ITEMS):
        found = found.base
    return isinstance(found, LocalSource)


def _is_special(number: int | float) -> bool:
    """Whether a number is always specialised: 0, 1, infinite and very large numbers."""
    if type(number) is int:
        return number in (0, 1) or abs(number) >= LARGEST_SYMBOL
    return number == 0.0 or not math.isfinite(number)  # there are two zeros, which are equal


class Histories:
    """The history of each code object that one converter compiles."""

    def __init__(self, dynamic: bool | None) -> None:
        self._dynamic = dynamic
        self._of: weakref.WeakKeyDictionary[CodeType, History] = weakref.WeakKeyDictionary()

    def of(self, code: CodeType) -> History:
        """That of a code object."""
        known = self._of.get(code)
        if known is None:
            known = self._of[code] = History(self._dynamic)
        return known
