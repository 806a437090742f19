"""The value stack as texts not written out yet, with effects and names in order: `Pending`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from framesmith_bytecode.text.expressions import NULL, Text

NOTHING: Final[frozenset[str]] = frozenset()


def slot_name(index: int) -> str:
    """Slot `index` of the value stack, from the bottom."""
    return f"${index}"


def slot_text(index: int) -> Text:
    """The name of slot `index` after it was written out."""
    name = slot_name(index)
    return Text(name, pure=True, reads=frozenset((name,)))


class Pending:
    """Texts of the slots, bottom first.

    A text gets a name (`$2 = ...` is written) before a variable that it reads changes, or before a later effect would
    come first; until then it can become part of an expression.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.slots: list[Text] = []

    def __len__(self) -> int:
        return len(self.slots)

    def is_named(self, index: int) -> bool:
        """Whether slot `index` has been written out under its name."""
        return self.slots[index].text == slot_name(index)

    def take(self, n: int) -> list[Text]:
        """Pop n."""
        cut = len(self.slots) - n
        taken = self.slots[cut:]
        del self.slots[cut:]
        return taken

    def prepare(self, n: int, changes: Iterable[str] = ()) -> None:
        """Name slots before a statement that takes n slots and changes these variables and slots."""
        changed = frozenset(changes)
        below = self.slots[: len(self.slots) - n]
        self.name(i for i, text in enumerate(below) if not text.pure or text.reads & changed)

    def name_effects(self) -> None:
        """Name every slot whose text has an effect, or depends on effects."""
        self.name(i for i, text in enumerate(self.slots) if not text.pure)

    def name_all(self, count: int) -> None:
        """Name the lowest `count` slots, except those that hold NULL."""
        self.name(i for i, text in enumerate(self.slots[:count]) if text is not NULL)

    def name(self, indices: Iterable[int]) -> None:
        """Name these slots and all that must be named with them, simultaneously where one reads another."""
        wanted = self.closure({i for i in indices if not self.is_named(i)})
        if not wanted:
            return
        ordered = sorted(wanted)
        targets = [slot_name(i) for i in ordered]
        texts = [self.slots[i] for i in ordered]
        crossed = any(text.reads & frozenset(targets) - {own} for own, text in zip(targets, texts, strict=True))
        if crossed:
            self.say(f"{', '.join(targets)} = {', '.join(text.text for text in texts)}")
        else:
            for own, text in zip(targets, texts, strict=True):
                self.say(f"{own} = {text.text}")
        for i in ordered:
            self.slots[i] = slot_text(i)

    def closure(self, wanted: set[int]) -> set[int]:
        """These slots, those that read the names assigned again, and the effects before them."""
        while True:
            targets = frozenset(map(slot_name, wanted))
            last = max((i for i in wanted if not self.slots[i].pure), default=-1)
            more = {
                i
                for i, text in enumerate(self.slots)
                if i not in wanted and not self.is_named(i) and (text.reads & targets or (i < last and not text.pure))
            }
            if not more:
                return wanted
            wanted |= more

    def swap(self, n: int) -> None:
        """Exchange the top with the n-th from the top; effects stay in order."""
        reach = self.slots[-n:]
        if sum(not text.pure for text in reach) > 1:
            self.name_effects()
        self.slots[-1], self.slots[-n] = self.slots[-n], self.slots[-1]

    def copy(self, n: int) -> None:
        """Push the n-th from the top again."""
        if not self.slots[-n].pure:
            self.name((len(self.slots) - n,))
        self.slots.append(self.slots[-n])
