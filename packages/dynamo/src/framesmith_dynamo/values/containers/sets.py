"""Common base of sets, and frozensets.

Iteration order matters to programs, so each value keeps a real set of its members' hash keys and applies every
operation to it as well: a set made in the trace iterates as the program's own would. The order of an existing set is
not guarded; reading it breaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.base import ContainerValue, MutableContainer
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.iteration.iterators import ConsumingIterator, tracked

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

SET_ORDER = register_break(
    "set-order",
    what="a set made outside the compiled function is iterated over",
    why="equal sets may iterate in different orders, and no guard compares the order",
    hint="iterate over sorted(...) of the set, or keep a tuple or dict instead",
)


def _is_left_when_complete() -> bool:
    """Whether `intersection` takes no more items once all members are found, which depends on the Python version."""
    left = iter((1, 2))
    {1}.intersection(left)
    return next(left, None) is not None


STOPS_WHEN_COMPLETE: Final = _is_left_when_complete()
#: The method of set of each operator.
OPERATORS: Final = {"&": "intersection", "|": "union", "-": "difference", "^": "symmetric_difference"}


class SetLike(ContainerValue):
    """Common base of sets, frozensets and key views: comparison and operators."""

    __slots__ = ()

    @property
    def compared_with(self) -> type[SetLike]:
        """The types of comparable operands: views of keys compare with each other and sets, sets with sets."""
        return SetLike

    def members_now(self, tr: Tracer) -> dict[object, Value]:
        """Members by their hash keys."""
        raise NotImplementedError

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        other = other.builtin_contents()
        if not isinstance(other, self.compared_with):
            return None
        mine, theirs = self.members_now(tr).keys(), other.members_now(tr).keys()
        results = {
            "==": mine == theirs,
            "!=": mine != theirs,
            "<=": mine <= theirs,
            "<": mine < theirs,
            ">=": mine >= theirs,
            ">": mine > theirs,
        }
        return tr.constant(results[op])

    def m_isdisjoint(self, tr: Tracer, other: Value, /) -> Value:
        if is_set(other):
            return tr.constant(self.members_now(tr).keys().isdisjoint(hashed(tr, other)))
        return tr.constant(not any(self.holds(tr, item) for item in each(tr, other)))

    def holds(self, tr: Tracer, item: Value) -> bool:
        """Whether an item is a member now."""
        return operations.hash_key(tr, item, set) in self.members_now(tr)


def is_set(other: Value) -> bool:
    """Whether C code takes all members at once: of a set, whatever its class overrides, or a view of keys."""
    held = other.builtin_contents() if issubclass(other.python_type(), set | frozenset) else other
    return isinstance(held, SetLike)


#: Methods that hash the items of others without making them elements: their errors name no use.
HASHING: Final = frozenset({"intersection", "intersection_update", "issubset"})


def hashed(tr: Tracer, other: Value, method: str = "") -> dict[object, Value]:
    """Return the members of any iterable by hash key, in order, for a method; stops at one that is unhashable."""
    holder = None if method in HASHING else set
    other = other.builtin_contents() if issubclass(other.python_type(), set | frozenset) else other
    if isinstance(other, SetLike):
        return other.members_now(tr)
    found: dict[object, Value] = {}
    for item in each(tr, other):
        found.setdefault(operations.hash_key(tr, item, holder), item)  # the first of equal members is retained
    return found


def member_key(tr: Tracer, item: Value) -> object:
    """Return the hash key of an item looked up in a set: a set stands for the frozenset of its members."""
    held = item.builtin_contents()
    if isinstance(held, FrozenSetValue) and isinstance(held, MutableContainer):
        return frozenset(held.mirror)
    return operations.hash_key(tr, item, set)


def set_argument(other: Value, keys: dict[object, Value]) -> Any:
    """Return a real argument for a method of set, of a kind with the same effect on the table's size."""
    held = other.builtin_contents()
    if isinstance(held, FrozenSetValue):
        return held.mirror
    return keys if issubclass(other.python_type(), dict) else list(keys)


def members_of(mirror: Iterable[object], operands: Sequence[dict[object, Value]]) -> dict[object, Value]:
    """Return the values of a result's hash keys, in the order of the operands.

    Of equal keys (1 and True) that of the operand whose key the result has.
    """
    equal: dict[object, Value] = {}
    same: dict[int, Value] = {}
    for keys in operands:
        for key, value in keys.items():
            equal.setdefault(key, value)
            same.setdefault(id(key), value)
    kept = {key: key for key in mirror}
    return {kept[key]: same.get(id(kept[key]), value) for key, value in equal.items() if key in kept}


class FrozenSetValue(SetLike):
    """A frozenset. `mirror` is a real set of hash keys, `members` finds the values; `ordered`: its order is known."""

    python_types: ClassVar[tuple[type, ...]] = (frozenset,)
    __slots__ = ("members", "mirror", "ordered")

    def __init__(
        self,
        mirror: set[object] | frozenset[object],
        members: dict[object, Value],
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(source=source)
        self.mirror = mirror
        self.members = members
        self.ordered = source is None

    @property
    def compared_with(self) -> type[SetLike]:
        return FrozenSetValue

    def is_constant(self) -> bool:
        return all(member.is_constant() for member in self.members.values())

    def can_be_constant(self) -> bool:
        return all(member.can_be_constant() for member in self.members.values())

    def as_constant(self) -> Any:
        if self.real is not None:
            return self.real
        if all(type(member) in (int, str, bool, float, bytes, type(None)) for member in self.mirror):
            return frozenset(self.mirror)
        return frozenset(self.members[key].as_constant() for key in self.mirror)

    def as_plain(self) -> Any:
        return frozenset(plain(self.members[key]) for key in self.mirror)

    def hash_key(self, tr: Tracer) -> object:
        return frozenset(self.mirror)

    def members_now(self, tr: Tracer) -> dict[object, Value]:
        return self.members

    def has_known_order(self) -> bool:
        return self.ordered

    def unpack(self, tr: Tracer) -> list[Value]:
        if not self.ordered and len(self.mirror) > 1:
            raise GraphBreak(SET_ORDER, self.describe())
        return [self.members[key] for key in self.mirror]

    def iter_(self, tr: Tracer) -> Value:
        return tracked(tr, ConsumingIterator(type(iter(set())), self.unpack(tr), self))

    def size_now(self) -> int:
        return len(self.mirror)

    def len_(self, tr: Tracer) -> Value:
        return tr.constant(len(self.mirror))

    def contains(self, tr: Tracer, item: Value) -> Value:
        return tr.constant(member_key(tr, item) in self.mirror)

    def make(self, tr: Tracer, mirror: set[object] | frozenset[object], members: dict[object, Value]) -> Value:
        """Return a new set of the same type."""
        return FrozenSetValue(frozenset(mirror), members)

    # Operators

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in OPERATORS or not isinstance(other.builtin_contents(), FrozenSetValue):
            return None  # operators with views of keys are implemented there
        return self.operation(tr, OPERATORS[op], [other])

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        held = other.builtin_contents()
        return held.binary_op(tr, op, self) if isinstance(held, FrozenSetValue) else None

    def operation(self, tr: Tracer, name: str, others: Sequence[Value]) -> Value:
        """Return a new set by a method of set, applied to the real sets of hash keys.

        Its own members are those before the others' items are taken, unless CPython reads them afterwards.
        """
        copied = self.mirror.copy(), dict(self.members)
        theirs = [hashed(tr, other, name) for other in others]
        arguments = [set_argument(other, keys) for other, keys in zip(others, theirs, strict=True)]
        own, members = (self.mirror, self.members) if name == "symmetric_difference" else copied
        mirror = getattr(own, name)(*arguments)
        result = self.make(tr, mirror, members_of(mirror, [members, *theirs]))
        assert isinstance(result, FrozenSetValue)
        result.ordered = self.ordered and all(other.builtin_contents().has_known_order() for other in others)
        return result

    # Methods

    def m_union(self, tr: Tracer, *others: Value) -> Value:
        return self.operation(tr, "union", others)

    def m_intersection(self, tr: Tracer, *others: Value) -> Value:
        if all(map(is_set, others)):
            return self.operation(tr, "intersection", others)
        result: Value = self
        for other in others:
            assert isinstance(result, FrozenSetValue)
            result = result.operation(tr, "intersection", [other]) if is_set(other) else result.shared(tr, other)
        return result

    def shared(self, tr: Tracer, iterable: Value) -> Value:
        """Return the intersection with an iterable that is no set: each item is looked up when it is taken."""
        members: dict[object, Value] = {}
        mirror: set[object] = set()
        for item in each(tr, iterable):
            key = operations.hash_key(tr, item)
            if key in self.mirror:
                mirror.add(key)
                members.setdefault(key, item)
            if STOPS_WHEN_COMPLETE and key in mirror and len(mirror) >= len(self.mirror):
                break
        return self.make(tr, mirror, members)

    def m_difference(self, tr: Tracer, *others: Value) -> Value:
        return self.operation(tr, "difference", others)

    def m_symmetric_difference(self, tr: Tracer, other: Value, /) -> Value:
        return self.operation(tr, "symmetric_difference", [other])

    def m_issubset(self, tr: Tracer, other: Value, /) -> Value:
        return tr.constant(self.members.keys() <= hashed(tr, other, "issubset").keys())

    def m_issuperset(self, tr: Tracer, other: Value, /) -> Value:
        if is_set(other):
            return tr.constant(self.members.keys() >= hashed(tr, other).keys())
        return tr.constant(all(operations.hash_key(tr, item, set) in self.members for item in each(tr, other)))

    def m_copy(self, tr: Tracer) -> Value:
        """`copy()`: a frozenset is its own copy."""
        return self

    # Back to bytecode

    def referents(self) -> Iterable[Value]:
        return self.members.values()

    def push_members(self, codegen: Codegen) -> None:
        """Push a plain set of the members, added in the program's order."""
        for member in self.members.values():
            codegen(member)
        codegen.build("set", len(self.members))

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        elif self.is_constant():
            codegen.load_const(self.as_constant())
        else:
            codegen.push_function(frozenset)
            self.push_members(codegen)
            codegen.call(1)
