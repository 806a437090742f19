"""What changes from call to call: sizes and numbers as they were when a code object was compiled before.

Everything is taken to stay at first. What was different at an earlier compilation of the same code is a symbol in the
next, and stays one.
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

#: Sources of what a container holds.
_ITEMS: Final = (ItemSource, StoredItemSource, DictValueSource)
#: Stands for a size or number that has changed.
CHANGED: Final = None
#: How deep containers are looked into for sizes and numbers of a call that is not compiled.
MAX_NESTING: Final = 4

Seen = list[int | None]


class History:
    """What was met at each source when a code object was compiled: a policy for the next time."""

    def __init__(self, dynamic: bool | None) -> None:
        self._asked = dynamic
        #: By name and number of dimensions: what alternates between two is as often one as the other.
        self.sizes: dict[tuple[str, int], Seen] = {}
        self.numbers: dict[str, int | float | None] = {}
        #: The names of tensors whose marks are not read.
        self.ignored: set[str] = set()
        #: What has turned out to change since it was last told, in the user's terms.
        self.news: list[str] = []

    @property
    def dynamic(self) -> bool | None:
        """Which sizes and numbers are symbols: what was asked for, else what torch's configuration says now."""
        if not setting("dynamic_shapes", True):
            return False
        return True if self._asked is None and not setting("assume_static_by_default", True) else self._asked

    @property
    def _is_automatic(self) -> bool:
        """Whether what has changed is a symbol from then on."""
        return bool(setting("automatic_dynamic_shapes", True))

    @property
    def allows_symbols(self) -> bool:
        """Whether anything at all may be a symbol."""
        return self.dynamic is not False

    def dims(self, tensor: torch.Tensor, source: Source) -> Dims:
        """The dimensions that are symbols: marked ones, those that have changed, all if everything is to be."""
        if not self.allows_symbols:
            self._note_ignored_marks(tensor, source.name)
            return STATIC
        if tensor.layout is not torch.strided or tensor.dim() == 0:
            return STATIC
        marks = marks_of(tensor, source.name)
        changed = self._changed_dims(tensor, source.name)
        if isinstance(tensor, torch.nn.Parameter):
            return STATIC
        everything = range(tensor.dim()) if self.dynamic else ()
        symbolic = {*changed, *everything} - marks.static | marks.symbolic
        return Dims(frozenset(symbolic), marks.ranges, marks.unbacked, marks.required)

    def take_newly_dynamic(self) -> list[str]:
        """What has turned out to change; once."""
        news, self.news = self.news, []
        return news

    def _note_ignored_marks(self, tensor: torch.Tensor, name: str) -> None:
        """Tell once for each name that its marks are not read."""
        if name not in self.ignored and is_marked(tensor):
            self.ignored.add(name)
            self.news.append(f"{name} is marked, which has no effect: with dynamic=False all sizes stay")

    def _changed_dims(self, tensor: torch.Tensor, name: str) -> set[int]:
        if not self._is_automatic:
            return set()
        sizes = tuple(tensor.shape)
        seen = self.sizes.setdefault((name, len(sizes)), list(sizes))
        for dim, size in enumerate(sizes):
            if seen[dim] is not CHANGED and seen[dim] != size:
                self.news.append(
                    f"{name}.size({dim}) was {seen[dim]} when compiled, and is {size}: it becomes dynamic now"
                )
                seen[dim] = CHANGED
        return {dim for dim, size in enumerate(seen) if size is CHANGED}

    def is_symbol(self, number: int | float, source: Source) -> bool:
        """Whether a number is a symbol: one that has changed; any argument, if everything is to be. 0 and 1 are not.

        An attribute of an object is a setting, more often than not: it is no symbol before it has changed.
        """
        if not self.allows_symbols or setting(f"specialize_{type(number).__name__}", False):
            return False
        changed = self._is_automatic and self._has_changed(number, source)
        return (changed or (self.dynamic is True and _is_passed(source))) and not _is_special(number)

    def _has_changed(self, number: int | float, source: Source) -> bool:
        seen = self.numbers.setdefault(source.name, number)
        if seen is not CHANGED and (type(seen) is not type(number) or seen != number):
            self.news.append(f"{source.name} was {seen!r} when compiled, and is {number!r}: it becomes dynamic now")
            self.numbers[source.name] = CHANGED
        return self.numbers[source.name] is CHANGED

    def note(self, found: object, source: Source, depth: int = 0) -> None:
        """Note the sizes and numbers of an argument, and what is in it, of a call that is not compiled."""
        if isinstance(found, torch.Tensor):
            self._changed_dims(found, source.name)
        elif type(found) in (int, float):
            self.is_symbol(cast(int, found), source)
        elif type(found) in (list, tuple, dict) and depth < MAX_NESTING:
            entries = found.items() if isinstance(found, dict) else enumerate(cast("list[object]", found))
            for key, item in entries:
                if type(key) in (int, str):
                    self.note(item, ItemSource(source, key), depth + 1)


def _is_passed(source: Source) -> bool:
    """Whether what is found at a source is an argument, or in a container that is one, however deep."""
    found: Source | None = source
    while isinstance(found, _ITEMS):
        found = found.base
    return isinstance(found, LocalSource)


def _is_special(number: int | float) -> bool:
    """Whether a number is known by its value even where others change: 0 and 1, what is infinite or too large."""
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
