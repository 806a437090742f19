"""LLVM in this process: modules compiled to machine code, cached by their text, entered as CPython functions."""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from llvmlite import binding

from framesmith_backends.render.target import Target, host

METH_FASTCALL = 0x0080


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@dataclass(slots=True)
class Machine:
    """The compiler of this process. `modules` keeps compiled code alive, by the hash of its text."""

    target: Target
    engine: Any
    machine: Any
    bytes_to_handle: int
    tensor_types: tuple[int, ...]
    lock: Any = field(default_factory=threading.Lock)
    modules: dict[str, dict[str, Callable[..., None]]] = field(default_factory=dict)
    alive: list[object] = field(default_factory=list)


@functools.cache
def machine() -> Machine:
    """Make the compiler once for the process."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = host()
    backing = binding.parse_assembly("")
    llvm_target = binding.Target.from_default_triple()
    tm = llvm_target.create_target_machine(cpu=target.name, features=target.features, opt=2, jit=True)
    engine = binding.create_mcjit_compiler(backing, tm)
    _add_symbols()
    own = llvm_target.create_target_machine(cpu=target.name, features=target.features, opt=2, jit=True)
    return Machine(target, engine, own, handle_offset(), (id(torch.Tensor), id(torch.nn.Parameter)))


def handle_offset() -> int:
    """Where a Python tensor keeps its C++ handle: the place in the object of what `_cdata` says.

    Cross-checked on a second tensor, so that a coincidence cannot pass.
    """
    probes = [torch.empty(1), torch.empty(2)]
    for offset in range(16, 64, 8):
        if all(ctypes.c_size_t.from_address(id(t) + offset).value == t._cdata for t in probes):
            return offset
    raise RuntimeError("this torch keeps tensors in an unknown layout: the cpu backend cannot read their data pointers")


def _add_symbols() -> None:
    libraries = [ctypes.CDLL(path) for path in _torch_libraries()]
    process = ctypes.CDLL(None)
    for name in (
        "GOMP_parallel",
        "omp_get_thread_num",
        "omp_get_num_threads",
        "omp_in_parallel",
        "aoti_torch_get_data_ptr",
    ):
        binding.add_symbol(name, _find(name, [*libraries, process]))
    # at::get_num_threads(), which also tells OpenMP on a thread's first use what torch.set_num_threads said.
    binding.add_symbol("fs_num_threads", _find("_ZN2at15get_num_threadsEv", [*libraries, process]))
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_SetString", "Py_IncRef", "PyType_IsSubtype"):
        binding.add_symbol(name, _address(getattr(ctypes.pythonapi, name)))
    for name in ("_Py_NoneStruct", "PyExc_TypeError"):
        binding.add_symbol(name, ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name)))
    for name in ("sinf", "cosf", "fmodf", "fmod"):
        binding.add_symbol(name, _find(name, [process]))


def _torch_libraries() -> list[str]:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    found = glob.glob(os.path.join(folder, "libgomp*")) + glob.glob(os.path.join(folder, "libtorch_cpu.*"))
    packaged = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "torch.libs")
    return found + glob.glob(os.path.join(packaged, "libgomp*"))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _find(name: str, libraries: list[Any]) -> int:
    for library in libraries:
        try:
            return _address(getattr(library, name))
        except AttributeError:
            continue
    raise RuntimeError(f"this torch's libraries have no {name}: the cpu backend needs a torch built with GNU OpenMP")


def compile_module(text: str, entries: list[str]) -> dict[str, Callable[..., None]]:
    """The entries of the module as Python functions taking tensors; the same text is compiled once."""
    m = machine()
    key = hashlib.sha256(text.encode()).hexdigest()
    with m.lock:
        found = m.modules.get(key)
        if found is None:
            found = m.modules[key] = _compiled(m, text, entries, key)
    return found


def _compiled(m: Machine, text: str, entries: list[str], key: str) -> dict[str, Callable[..., None]]:
    # Entries of different modules live in one engine: their names must differ.
    unique = {name: f"{name}.{key[:16]}" for name in entries}
    for name, full in unique.items():
        text = text.replace(f"@{name}(", f'@"{full}"(')
    module = binding.parse_assembly(text)
    module.verify()
    optimize(module, m.machine)
    m.engine.add_module(module)
    m.engine.finalize_object()
    return {name: _python_function(m, name, m.engine.get_function_address(full)) for name, full in unique.items()}


def optimize(module: Any, machine: Any) -> None:
    """The few passes the renderer's text needs: cells to registers, common parts, instruction patterns, tidy loops."""
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)


def _python_function(m: Machine, name: str, address: int) -> Callable[..., None]:
    method = MethodDef(name.encode(), address, METH_FASTCALL, None)
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    make = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    m.alive.append(method)
    function: Callable[..., None] = make(ctypes.addressof(method), None, None)
    return function
