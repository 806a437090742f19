"""LLVM's own code stays out of this process's memory while nothing is compiled: Note [Compiler pages]."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

#: From Linux's headers: elf.h, asm-generic/mman-common.h.
PT_LOAD, PT_DYNAMIC, PF_W, ET_DYN, MADV_DONTNEED = 1, 2, 2, 3, 4
DT_TEXTREL, DT_FLAGS, DF_TEXTREL = 22, 30, 4

#: The first bytes of the one kind of file that is read here: ELF, of 64 bits, little-endian, of the first version.
_BEGINNING = b"\x7fELF\x02\x01\x01"

#: Of Elf64_Ehdr: what it begins with, the kind of file, where the program headers are, the size of each, how many.
_HEADER = struct.Struct("<7s9xH14xQ14xHH")
#: Elf64_Phdr and Elf64_Dyn.
_SEGMENT, _ENTRY = struct.Struct("<IIQQQQQQ"), struct.Struct("<QQ")


class _Mapping(NamedTuple):
    """A line of /proc/self/maps: addresses, the offset in the file that they show, and which file that is."""

    begin: int
    end: int
    offset: int
    allowed: bytes
    file: tuple[bytes, bytes]


class _Segment(NamedTuple):
    """Elf64_Phdr."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    size: int
    alignment: int


def _mapped_files(name: str) -> list[list[_Mapping]]:
    """The mappings of each file of this name, from that of its beginning on.

    A file that has been deleted or replaced since bears another name there, one that ends in "(deleted)".
    """
    found: list[list[_Mapping]] = []
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            where, allowed, offset, device, inode, *path = line.rstrip(b"\n").split(maxsplit=5)
            if path and os.path.basename(path[0]) == os.fsencode(name):
                begin, end = (int(address, 16) for address in where.split(b"-"))
                one = _Mapping(begin, end, int(offset, 16), allowed, (device, inode))
                if one.offset == 0:
                    found.append([one])
                elif found and found[-1][0].file == one.file:
                    found[-1].append(one)
    return found


def _segments(memory: int, base: int) -> list[_Segment]:
    """The loader's entry of the library whose beginning lies at `base`, if that is a known library."""
    beginning, kind, table, size, count = _HEADER.unpack(os.pread(memory, _HEADER.size, base))
    if (beginning, kind, size) != (_BEGINNING, ET_DYN, _SEGMENT.size):
        return []
    return [_Segment(*one) for one in _SEGMENT.iter_unpack(os.pread(memory, size * count, base + table))]


def _wrote_constants(memory: int, moved: int, segments: list[_Segment]) -> bool:
    """Whether the loader wrote addresses into segments that are not to be written to ("text relocations")."""
    dynamic = (os.pread(memory, one.size, moved + one.address) for one in segments if one.type == PT_DYNAMIC)
    entries = (entry for text in dynamic for entry in _ENTRY.iter_unpack(text))
    return any(tag == DT_TEXTREL or (tag == DT_FLAGS and value & DF_TEXTREL) for tag, value in entries)


def _pages_of(memory: int, mappings: list[_Mapping]) -> Iterator[tuple[int, int]]:
    """The pages of one library that show its file, and always will."""
    segments = _segments(memory, mappings[0].begin)
    loaded = [segment for segment in segments if segment.type == PT_LOAD]
    if not loaded or loaded[0].offset != 0:
        return
    page = os.sysconf("SC_PAGE_SIZE")
    moved = mappings[0].begin - loaded[0].address
    if _wrote_constants(memory, moved, segments):
        return
    for segment in loaded:
        if segment.flags & PF_W:
            continue
        first = moved + segment.address
        for one in mappings:
            begin = max(one.begin, -(-first // page) * page)
            end = min(one.end, (first + segment.file_size) // page * page)
            in_place = one.offset - one.begin == segment.offset - first
            if begin < end and in_place and one.allowed in (b"r--p", b"r-xp"):
                yield begin, end - begin


@functools.cache
def _constant_pages(name: str) -> tuple[tuple[int, int], ...]:
    """Address and length of the whole pages of a loaded library that nothing ever writes to; none where in doubt.

    The mappings are read, not the loader's list: it calls back with a lock held for which threads that import wait,
    and these hold the interpreter's lock. Memory is read, not the file, which could be another one by now; through the
    system, for which an address that has gone is an error.
    """
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return tuple(pages for mappings in _mapped_files(name) for pages in _pages_of(memory, mappings))
        finally:
            os.close(memory)
    except (OSError, struct.error):
        return ()


def give_back(name: str) -> None:
    """Let go of the library's code and constants in memory; what is needed again is read from the file's pages.

    Note [Compiler pages]: a compile touches 30 to 70 MB of LLVM's library. These pages of the file are mapped again
    within a microsecond, also by other threads in the library, but count as this process's own for as long as it lives.
    So each compile ends with giving them back. Pages that the loader wrote addresses to are in segments that can be
    written to, though the loader may forbid it in the end, and stay.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for begin, length in _constant_pages(name):
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), MADV_DONTNEED)
