"""LLVM in this process: modules compiled to machine code, cached by their text, entered as CPython functions.

Machine code is kept in the user's cache folder (`storage`), by its text, LLVM's passes and version, and the processor:
no text holds an address, which another process would have elsewhere.

Note [Lifetime]: every module has an engine of its own, whose machine code is freed with it. The functions of a module
hold it (through the object a builtin method is bound to), the cache of modules holds it weakly: code lives as long as
a function that enters it, or until the garbage that both are part of is collected: a finalizer in the same garbage must
not call it. An engine's target machine is its own too: LLVM's engines take theirs over.

A builtin method reads its definition when it is freed. So it is bound to a tuple that owns the definition as `bytes`:
the garbage collector cannot clear these while the method is there. A structure of ctypes, or an attribute of the
module, it clears in any order, and the method would read freed memory.

Scratch memory that a module's functions pool is freed with it, by its own function (`DRAIN`): a weak reference's
callback is called while the machine code is still there.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary, finalize

import torch
from llvmlite import binding
from llvmlite.utils import get_library_name

from framesmith_backends import storage
from framesmith_backends.launch.background import at_work, begin, made, once
from framesmith_backends.launch.llvm.compiler_pages import give_back
from framesmith_backends.launch.llvm.heap import keep_freed_pages
from framesmith_backends.launch.llvm.libraries import MATMULS, address, find, torch_libraries, why_no_blas
from framesmith_backends.render.llvm.runtime import DRAIN
from framesmith_backends.target import Processor, host

METH_FASTCALL = 0x0080

#: The passes on a module before code is generated (cells to registers, common parts and instruction patterns, tidy
#: loops), and the levels of both; stored code is keyed by them, too.
LLVM_PASSES, LEVEL = ("sroa", "instruction_combine", "simplify_cfg"), 2


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class CompiledModule:
    """Machine code and what it is entered through (see Note [Lifetime]); `kept` is what its data point to."""

    def __init__(self, engine: Any, entries: list[str]) -> None:
        self.engine = engine
        self.kept: object = None
        self.entries = {name: engine.get_function_address(name) for name in entries}
        drain = engine.get_function_address(DRAIN)
        if drain:
            finalize(self, ctypes.CFUNCTYPE(None)(drain)).atexit = False

    def functions(self) -> Mapping[str, object]:
        """The entries as Python functions taking tensors."""
        return {name: self._bound(name.encode(), where) for name, where in self.entries.items()}

    def _bound(self, name: bytes, where: int) -> object:
        """A builtin method that holds its definition: see Note [Lifetime]."""
        definition = bytes(MethodDef(name, where, METH_FASTCALL, None))
        return _bind(ctypes.cast(ctypes.c_char_p(definition), ctypes.c_void_p), (self, definition, name), None)


@dataclass(slots=True)
class Machine:
    """The compiler of this process. `modules` finds compiled code that is in use, by the hash of its text."""

    target: Processor
    llvm: Any
    bytes_to_handle: int
    lock: Any = field(default_factory=threading.Lock)
    modules: WeakValueDictionary[str, CompiledModule] = field(default_factory=WeakValueDictionary)

    def target_machine(self) -> Any:
        """A code generator for this processor."""
        return self.llvm.create_target_machine(cpu=self.target.name, features=self.target.features, opt=LEVEL, jit=True)


_bind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


@once
def machine() -> Machine:
    """Make the compiler once for the process."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    keep_freed_pages()
    _add_symbols()
    llvm = binding.Target.from_default_triple()
    return Machine(host(), llvm, handle_offset())


def handle_offset() -> int:
    """The offset in a Python tensor of its C++ handle, which `_cdata` returns.

    Cross-checked on a second tensor, so that a coincidence cannot pass.
    """
    probes = [torch.empty(1), torch.empty(2)]
    for offset in range(16, 64, 8):
        if all(ctypes.c_size_t.from_address(id(t) + offset).value == t._cdata for t in probes):
            return offset
    raise RuntimeError("this torch keeps tensors in an unknown layout: the cpu backend cannot read their data pointers")


#: Functions that modules call of OpenMP and torch, and of CPython; and CPython's objects.
_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_in_parallel", "aoti_torch_get_data_ptr")
_CPYTHON = (
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_SetString", "PyErr_Occurred", "PyErr_Format", "Py_IncRef",
    "PyType_IsSubtype", "PyLong_AsLongLong", "PyFloat_AsDouble", "PyObject_Vectorcall",
)  # fmt: skip
_OBJECTS = ("_Py_NoneStruct", "PyExc_TypeError", "PyExc_OverflowError", "PyExc_RuntimeError", "PyExc_IndexError")


def _add_symbols() -> None:
    libraries = torch_libraries()
    process = ctypes.CDLL(None)
    symbols = {name: find(name, [*libraries, process]) for name in _OPENMP}
    # at::get_num_threads(), which also passes to OpenMP on a thread's first use what torch.set_num_threads said.
    symbols["fs_num_threads"] = find("_ZN2at15get_num_threadsEv", [*libraries, process])
    if why_no_blas() is None:
        symbols |= {name: find(exported, libraries) for name, exported in MATMULS.items()}
    symbols |= {name: address(getattr(ctypes.pythonapi, name)) for name in _CPYTHON}
    symbols |= {name: ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name)) for name in _OBJECTS}
    symbols |= {name: id(kind) for name, kind in TENSOR_TYPES.items()}
    libc = ("sinf", "cosf", "sin", "cos", "fmodf", "fmod", "malloc", "aligned_alloc", "free")
    symbols |= {name: find(name, [process]) for name in libc}
    add_symbols(symbols)


def add_symbols(addresses: Mapping[str, int]) -> None:
    """Define the functions that modules compiled from now on call by these names."""
    for name, where in addresses.items():
        binding.add_symbol(name, where)


#: The name in modules of the types that they take for tensors without asking further.
TENSOR_TYPES = {"fs.tensor": torch.Tensor, "fs.parameter": torch.nn.Parameter}


def begin_module(text: str, entries: list[str]) -> Future[Mapping[str, object]]:
    """The entries of the module as Python functions taking tensors; a text that is in use is not compiled again."""
    m = machine()
    key = hashlib.sha256(text.encode()).hexdigest()
    found = m.modules.get(key)
    return begin(lambda: _compiled(m, key, text, entries)) if found is None else made(found.functions())


def _compiled(m: Machine, key: str, text: str, entries: list[str]) -> Mapping[str, object]:
    with m.lock:
        found = m.modules.get(key)
        if found is None:
            found = m.modules[key] = CompiledModule(engine_of("module", text), entries)
    return found.functions()


def engine_of(kind: str, text: str) -> Any:
    """An engine that holds the module's machine code, loaded; `kind` is for the name of the file."""
    with at_work():
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine().target_machine())
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code(kind, text)))
        engine.finalize_object()
        give_back(get_library_name())
    return engine


def machine_code(kind: str, text: str) -> bytes:
    """The module as an object file, from the cache folder if this compiler has made it for this processor before."""
    known = machine()
    version = ".".join(map(str, binding.llvm_version_info))
    parts = (text, *LLVM_PASSES, str(LEVEL), version, known.target.name, known.target.features)
    name = f"{kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}{storage.CODE}"
    found = storage.read(name)
    if found is None:
        module = binding.parse_assembly(text)
        module.verify()
        passes, builder = optimizer()
        passes.run(module, builder)
        found = bytes(known.target_machine().emit_object(module))
        storage.write(name, found)
    return found


@once
def optimizer() -> tuple[Any, Any]:
    """The few passes the renderer's text needs, and what they are run with.

    Made once: llvmlite never frees a pass manager, nor all of a pass builder.
    """
    options = binding.create_pipeline_tuning_options(speed_level=LEVEL)
    builder = binding.create_pass_builder(machine().target_machine(), options)
    passes = binding.create_new_module_pass_manager()
    for name in LLVM_PASSES:
        getattr(passes, f"add_{name}_pass")()
    return passes, builder
