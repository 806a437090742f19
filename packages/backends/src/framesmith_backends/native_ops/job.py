"""An operator's module, and its job: the 64-bit words that entries take, described once for renderer and launcher."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from framesmith_backends.render.llvm.builder import Value
from framesmith_backends.render.llvm.runtime import RUNTIME, attributes
from framesmith_backends.render.llvm.writer import Writer
from framesmith_backends.target import Processor

#: The parameter of functions of a module that read the job.
POINTER = Value("%job", "ptr")
#: The parameters of functions that run in threads: the first of some tasks, and the one after their last.
BEGIN, END = Value("%begin", "i64"), Value("%end", "i64")


class Job:
    """The words in order, each written `kind name`: `ptr source`, `i64 count` or `float scale`."""

    def __init__(self, *words: str) -> None:
        self.kinds = {name: kind for kind, name in map(str.split, words)}
        self.index = {name: k for k, name in enumerate(self.kinds)}
        self._zeros = dict.fromkeys(self.kinds, 0)
        self._pack = struct.Struct("".join("f4x" if kind == "float" else "q" for kind in self.kinds.values())).pack
        self._array: Any = ctypes.c_int64 * len(self.kinds)

    def __call__(self, **words: float) -> Any:
        """The array of these words, zeros for others; struct.error for an unknown name, too."""
        return self._array.from_buffer_copy(self._pack(*(self._zeros | words).values()))

    def ordered(self, *words: float) -> Any:
        """The same of all words, in order: faster."""
        return self._array.from_buffer_copy(self._pack(*words))

    def copy(self, words: bytes) -> Any:
        """An array of words that were made before."""
        return self._array.from_buffer_copy(words)

    def set_float(self, job: Any, name: str, number: float) -> None:
        """Change a word of an array to a float."""
        struct.pack_into("f", job, 8 * self.index[name], number)

    def load(self, w: Writer, job: Value = POINTER) -> dict[str, Value]:
        """All words, read in a function of the module."""
        return {name: w.load(self.at(w, name, job), kind, align=8) for name, kind in self.kinds.items()}

    def at(self, w: Writer, name: str, job: Value = POINTER) -> Value:
        """The address of one word."""
        return w.at(job, self.index[name], "i64")


class OperatorModule:
    """A module of functions for a processor, of instructions for its `vectors`, and what they declare."""

    def __init__(self, target: Processor, vectors: str | None = None) -> None:
        self.target, self.vectors = target, target.vectors if vectors is None else vectors
        self._declared: dict[str, None] = {}

    def writer(self) -> Writer:
        """The writer of one of its functions."""
        return Writer(vectors=self.vectors, declared=self._declared)

    def text(self, *functions: str, threads: bool = True) -> str:
        """Its text, with the functions that run others in threads."""
        shared = (RUNTIME,) if threads else ()
        return "\n\n".join([*self._declared, *shared, *functions, attributes(self.target)])


def array(w: Writer, size: int, kind: str) -> Value:
    """The address of an array on the stack."""
    place = Value(w.name(), "ptr")
    w.entry.append(f"{place.text} = alloca [{size} x {kind}], align 64")
    return place


def lane_numbers(lanes: int, kind: str = "i64", first: int = 0) -> Value:
    """A vector of its lanes' numbers, from `first` on."""
    return Value("<" + ", ".join(f"{kind} {first + k}" for k in range(lanes)) + ">", kind, lanes)


def threaded(w: Writer, name: str) -> str:
    """`void name(ptr job, i64 begin, i64 end)`: what was written, as a function that runs in threads."""
    return w.function(f"define internal void @{name}(ptr %job, i64 %begin, i64 %end)")


def entry(name: str, extents: Mapping[str, str]) -> str:
    """`void name(ptr job, i64 for each extent, i32 threads)`: functions of (job, begin, end), each over its extent."""
    taken = "".join(f", i64 %{extent}" for extent in extents.values())
    calls = "".join(
        f"  call void @fs.parallel(ptr @{function}, ptr %job, i64 %{extent}, i32 %threads)\n"
        for function, extent in extents.items()
    )
    return f"define void @{name}(ptr %job{taken}, i32 %threads) {{\n{calls}  ret void\n}}"


def call(w: Writer, name: str, names: Iterable[str], given: Mapping[str, Value]) -> None:
    """Call a function whose parameters are `kind name` with the values of these names."""
    w.call(name, *(given[one.split()[1]] for one in names))
