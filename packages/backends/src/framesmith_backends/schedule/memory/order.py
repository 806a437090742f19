"""Sinking of kernels to their first use, where their results are larger than what they free; hoisting of matmuls that
free more than they make.

A backward graph begins with all that is computed again, which would be there at once, as if it had been saved. Other
calls keep their order, and kernels with checks their place, so that the first to fail is eager's. What a call with
effects comes after stays before it: a failure leaves everything as it was. Symbolic sizes count by their hints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import Program
from framesmith_backends.schedule.fusion.group import CallNode, Group, Node
from framesmith_backends.schedule.memory.reuse import is_matmul, layout_bytes
from framesmith_backends.schedule.steps import names_of

#: Bytes that are not worth another entry between two calls.
TRIFLE = 1 << 15


def sink_to_uses(
    nodes: Sequence[Node],
    program: Program,
    stored: Collection[str],
    ending: Collection[str],
    fused: Mapping[int, Sequence[Item]],
) -> list[Node]:
    """The nodes, with kernels right before the first node that needs them, where less is alive meanwhile.

    `stored` are definitions that need memory, `ending` the calls at which runs end, `fused` what runs at a node in the
    place of it and of others, by its number: that reads what these read.
    """
    reads = {node.number: _read(node, program) | _read_by(fused.get(node.number, ())) for node in nodes}
    readers: dict[str, list[int]] = {}
    for number, names in reads.items():
        for name in names:
            readers.setdefault(name, []).append(number)
    kept = {name for name in program.outputs if isinstance(name, str)}
    staying = kept | program.held
    effects = [node for node in nodes if not isinstance(node, Group) and node.call.effect]
    ends = [0, *accumulate(not isinstance(node, Group) and node.call.name in ending for node in nodes)]
    place = {node.number: (at, 1, at) for at, node in enumerate(nodes)}
    for at, node in reversed([*enumerate(nodes)]):
        members = node.members if isinstance(node, Group) else ()
        made = [one.name for one in members if one.name in stored]
        if not made or not kept.isdisjoint(made) or any(one.failure is not None for one in members):
            continue
        needing = {number for name in made for number in readers.get(name, ())} - {node.number}
        needing.update(one.number for one in effects if one.before >> node.number & 1)
        first = min((place[number] for number in needing), default=place[node.number])
        if first[0] <= at + 1:
            continue
        freed = (name for name in reads[node.number] if name not in staying)
        freed = (name for name in freed if max(place[number] for number in readers[name]) < first)
        more = TRIFLE if ends[first[0]] > ends[at] else 1
        if _bytes(made, program) >= _bytes(freed, program) + more:
            place[node.number] = (first[0], 0, at)
    return sorted(nodes, key=lambda node: place[node.number])


def hoist_what_frees(nodes: Sequence[Node], program: Program, fused: Mapping[int, Sequence[Item]]) -> list[Node]:
    """The nodes, with matmuls that are the last to read more than they make right behind what they need.

    A layer's gradient of the weights frees its activations; the gradient of these needs as much memory. `fused`: see
    `sink_to_uses`.
    """
    staying = {name for name in program.outputs if isinstance(name, str)} | program.held
    found = [*nodes]
    for at, node in enumerate(nodes):
        if isinstance(node, Group) or not _is_lone_matmul(node, fused):
            continue
        wait = [one for one in range(at) if not node.before >> found[one].number & 1]
        first = next((one for one in reversed(range(at)) if one not in wait and not _is_view(found[one], program)), -1)
        passed = [one for one in wait if one > first and not _is_view(found[one], program)]
        if not passed:
            continue
        others = (*(found[one] for one in passed), *found[at + 1 :])
        read = {name for one in others for name in _roots(_read(one, program), program)}
        freed = _roots(_read(node, program), program) - read - staying
        if _bytes(freed, program) >= _bytes([node.call.name], program) + TRIFLE:
            moved = [one for one in range(first + 1, at + 1) if one not in wait]
            found[first + 1 : at + 1] = [found[one] for one in (*moved, *(o for o in wait if o > first))]
    return found


def _is_lone_matmul(node: CallNode, fused: Mapping[int, Sequence[Item]]) -> bool:
    items = fused.get(node.number)
    return is_matmul(node.call.node) and (items is None or [one.name for one in items] == [node.call.name])


def _is_view(node: Node, program: Program) -> bool:
    return not isinstance(node, Group) and node.call.name in program.views


def _roots(names: Iterable[str], program: Program) -> set[str]:
    return {program.views[name].source if name in program.views else name for name in names}


def _read(node: Node, program: Program) -> set[str]:
    """The buffers and numbers that a node needs, without its own."""
    if not isinstance(node, Group):
        return {*node.call.needs, *program.numbers_for(node.call)}
    numbers = {name for one in node.members for name in program.numbers_for(one)}
    return (node.reads | numbers) - {one.name for one in node.members}


def _read_by(items: Sequence[Item]) -> set[str]:
    return {name for item in items for name in names_of(item)}.difference(*(names_of(item, True) for item in items))


def _bytes(names: Iterable[str], program: Program) -> int:
    return sum(layout_bytes(program.layouts[name]) for name in names if name in program.layouts)
