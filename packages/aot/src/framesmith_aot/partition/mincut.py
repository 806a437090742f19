"""Minimum cut of a directed graph (Dinic's algorithm, 1970), by which the recompute policy chooses what is saved."""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")


class FlowNetwork:
    """A network with vertices 0 .. size-1; capacities are non-negative, `INFINITE` allowed."""

    def __init__(self, size: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(size)]
        self._head: list[int] = []
        self._room: list[float] = []

    def add_edge(self, tail: int, head: int, capacity: float) -> None:
        """Add an edge; edges 2k and 2k+1 are each other's reverse."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0.0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._room.append(room)

    def source_side(self, source: int, sink: int) -> set[int] | None:
        """Return the source side of the minimum cut nearest to the sink; None where every cut is infinite."""
        while True:
            level = self._levels(source)
            if sink not in level:
                return {*range(len(self._edges))} - self._leading_to(sink)
            cursor = [0] * len(self._edges)
            while (path := self._path(source, sink, level, cursor)) is not None:
                if not self._push(path):
                    return None

    def _levels(self, source: int) -> dict[int, int]:
        level = {source: 0}
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                head = self._head[edge]
                if self._room[edge] > 0 and head not in level:
                    level[head] = level[vertex] + 1
                    queue.append(head)
        return level

    def _leading_to(self, sink: int) -> set[int]:
        found = {sink}
        queue = deque([sink])
        while queue:
            for edge in self._edges[queue.popleft()]:
                tail = self._head[edge]
                if self._room[edge ^ 1] > 0 and tail not in found:
                    found.add(tail)
                    queue.append(tail)
        return found

    def _path(self, source: int, sink: int, level: dict[int, int], cursor: list[int]) -> list[int] | None:
        """Return the edges of a residual path along rising levels; `cursor` records the edges that were tried."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges = self._edges[vertex]
            while cursor[vertex] < len(edges):
                edge = edges[cursor[vertex]]
                head = self._head[edge]
                if self._room[edge] > 0 and level.get(head, -1) == level[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    break
                cursor[vertex] += 1
            else:
                if not path:
                    return None
                vertex = self._head[path.pop() ^ 1]
                cursor[vertex] += 1
        return path

    def _push(self, path: list[int]) -> bool:
        amount = min(self._room[edge] for edge in path)
        if amount == INFINITE:
            return False
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return True
