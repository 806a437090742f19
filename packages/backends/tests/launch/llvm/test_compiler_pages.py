"""LLVM's pages: which they are, that they go after a compile, and a compile after they were given back."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from graphs.tracing import trace
from llvmlite import binding
from llvmlite.utils import get_library_name

from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm.compiler_pages import DT_TEXTREL, PT_DYNAMIC, _constant_pages
from tools.warm_process import run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")


class Account(NamedTuple):
    """The system's counts for one range of memory, in KiB."""

    begin: int
    end: int
    allowed: str
    path: str
    sizes: dict[str, int]


def accounts() -> list[Account]:
    found: list[Account] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            begin, end = (int(address, 16) for address in first.split("-"))
            found.append(Account(begin, end, rest[0], rest[4] if len(rest) > 4 else "", {}))
        elif rest[-1] == "kB":
            found[-1].sizes[first[:-1]] = int(rest[0])
    return found


def resident(library: str) -> int:
    """Bytes of the library's code in this process's memory."""
    return sum(one.sizes["Rss"] * 1024 for one in accounts() if one.path.endswith(library) and "x" in one.allowed)


def pages(name: str) -> tuple[tuple[int, int], ...]:
    return _constant_pages.__wrapped__(name)


def test_code_of_the_compiler_is_given_back_and_works_again() -> None:
    x = torch.randn(53)
    for factor in (1.25, 1.5):
        (found,) = CpuBackend().compile(trace(lambda a, k=factor: a * k + 3, [x]), [x])([x])
        torch.testing.assert_close(found, x * factor + 3)
        binding.parse_assembly("")
        assert 0 < resident("libllvmlite.so") < 4 << 20


def test_pages_are_clean_private_pages_of_the_file() -> None:
    mine = [one for one in accounts() if os.path.basename(one.path) == get_library_name()]
    found = pages(get_library_name())
    assert sum(size for _, size in found) > 50 << 20
    for begin, size in found:
        (one,) = (one for one in mine if one.begin <= begin and begin + size <= one.end)
        assert one.allowed in ("r--p", "r-xp")
        assert one.sizes["Anonymous"] == one.sizes["Private_Dirty"] == one.sizes["Shared_Dirty"] == 0
    # Other memory of the library that may only be read has been written to before: by the loader.
    rest = [
        one for one in mine if "w" not in one.allowed and not any(one.begin <= begin < one.end for begin, _ in found)
    ]
    assert rest
    assert all(one.sizes["Anonymous"] for one in rest)


def test_the_loader_says_the_same() -> None:
    program = """
import ctypes, os
from llvmlite.utils import get_library_name
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.launch.llvm.compiler_pages import _constant_pages

class Segment(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("flags", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64) for name in ("offset", "address", "physical", "file_size", "size", "alignment")
    ]

class Library(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("name", ctypes.c_char_p)]
    _fields_ += [("segments", ctypes.POINTER(Segment)), ("count", ctypes.c_uint16)]

page, reported = os.sysconf("SC_PAGE_SIZE"), []
def visit(library, size, data):
    one = library.contents
    if os.path.basename(one.name.decode()) == get_library_name():
        for segment in one.segments[:one.count]:
            if segment.type == 1 and not segment.flags & 2:
                begin = -(-(one.base + segment.address) // page) * page
                reported.append((begin, (one.base + segment.address + segment.size) // page * page - begin))
    return 0

kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(visit), None)
print(len(reported), tuple(reported) == _constant_pages(get_library_name()))
"""
    assert run_program(program).stdout.split() == ["3", "True"]


def a_copy(to: Path, change: Callable[[bytes], bytes] = bytes) -> str:
    """A library of its own in this process, the C library's of numbers, and the name of its file."""
    (path,) = {one.path for one in accounts() if os.path.basename(one.path).startswith("libm.so")}
    copy = to / f"lib{to.name}.so"
    copy.write_bytes(change(Path(path).read_bytes()))
    ctypes.CDLL(os.fspath(copy))
    return copy.name


def test_pages_are_found_while_another_thread_imports(tmp_path: Path) -> None:
    """It has the interpreter's lock while it waits for the loader's, to which it adds a library each time."""
    program = """
import ctypes, sys, threading, time
from llvmlite.utils import get_library_name
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.launch.llvm.compiler_pages import _constant_pages
loader = ctypes.PyDLL(None)  # called with the interpreter's lock, as an import is
loader.dlopen.restype, loader.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
end, loaded, found = time.monotonic() + 2, 0, set()
def loading():
    global loaded
    while time.monotonic() < end:
        assert loader.dlclose(loader.dlopen(sys.argv[1].encode(), 2)) == 0
        loaded += 1
thread = threading.Thread(target=loading)
thread.start()
while time.monotonic() < end:
    found.add(_constant_pages.__wrapped__(get_library_name()))
thread.join()
print(len(found), () in found, loaded > 20)
"""
    done = run_program(program, os.fspath(tmp_path / a_copy(tmp_path)))
    assert done.stdout.split() == ["1", "False", "True"]


def test_a_file_that_was_deleted_has_none(tmp_path: Path) -> None:
    name = a_copy(tmp_path)
    assert pages(name)
    shutil.rmtree(tmp_path)
    assert not pages(name)


@pytest.mark.parametrize(
    ("at", "byte"),
    [(0, 0), (4, 1), (5, 2), (6, 9), (16, 2), (54, 32), (56, 0)],
    ids=["no ELF", "32 bits", "big-endian", "a later version", "a program", "other headers", "no headers"],
)
def test_a_library_of_another_kind_has_none(tmp_path: Path, at: int, byte: int) -> None:
    name = a_copy(tmp_path)
    assert pages(name)
    with (tmp_path / name).open("r+b") as file:  # What has not been written to in memory shows the file as it is.
        file.seek(at)
        file.write(bytes([byte]))
    assert not pages(name)


def with_text_relocations(library: bytes) -> bytes:
    """The library with one more entry of its dynamic section, in the place of the first that says it ends (of some)."""
    changed = bytearray(library)
    (table,), (size, count) = struct.unpack_from("<Q", library, 32), struct.unpack_from("<HH", library, 54)
    for at in range(table, table + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", library, at)
        if kind == PT_DYNAMIC:
            ends = [one for one in range(offset, offset + length, 16) if library[one : one + 8] == bytes(8)]
            assert len(ends) > 1
            struct.pack_into("<QQ", changed, ends[0], DT_TEXTREL, 0)
    return bytes(changed)


def test_a_library_whose_code_the_loader_wrote_to_has_none(tmp_path: Path) -> None:
    assert not pages(a_copy(tmp_path, with_text_relocations))


def test_a_library_that_is_not_loaded_has_none() -> None:
    assert pages("libnone.so") == ()
