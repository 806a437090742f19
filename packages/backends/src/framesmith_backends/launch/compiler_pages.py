"""LLVM's own code stays out of this process's memory while nothing is compiled: Note [Compiler pages]."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

#: From Linux's headers: elf.h, asm-generic/mman-common.h.
PT_LOAD, PF_W, MADV_DONTNEED = 1, 2, 4


class _Segment(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("file_size", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    ]


class _Library(ctypes.Structure):
    """The part of dl_phdr_info that every C library has."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    ]


_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


@functools.cache
def _constant_pages(name: str) -> tuple[tuple[int, int], ...]:
    """Address and length of the whole pages of a loaded library that nothing ever writes to."""
    page = os.sysconf("SC_PAGE_SIZE")
    found: list[tuple[int, int]] = []

    def visit(library: ctypes._Pointer[_Library], size: int, data: int) -> int:
        one = library.contents
        if os.path.basename((one.name or b"").decode(errors="replace")) == name:
            for segment in one.segments[: one.count]:
                if segment.type == PT_LOAD and not segment.flags & PF_W:
                    begin = -(-(one.base + segment.address) // page) * page
                    end = (one.base + segment.address + segment.size) // page * page
                    found.append((begin, end - begin))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_VISIT(visit), None)
    return tuple(found)


def find_pages(name: str) -> None:
    """Look for the library's pages, once, where no thread of ours works beside the program.

    The loader's lock is held meanwhile, and the interpreter's is needed: a thread that imports has the second one and
    waits for the first.
    """
    if sys.platform == "linux":
        _constant_pages(name)


def give_back(name: str) -> None:
    """Let go of the library's code and constants in memory; what is needed again is read from the file's pages.

    Note [Compiler pages]: LLVM is a library of 130 MB, of which a compile touches 30 to 70. They are pages of the
    file, which the system keeps for whoever else has it loaded and maps again within a microsecond, but they count as
    this process's own for as long as it lives. So each compile ends with giving them back. Other threads that are
    in the library meanwhile map them again, too. Pages that the loader wrote addresses to lie in segments that can be
    written to, and stay.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for begin, length in _constant_pages(name):
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), MADV_DONTNEED)
