"""Our own matrix product in this process: compiled once, called with raw pointers."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from llvmlite import binding

from framesmith_backends.launch.native import machine, optimizer
from framesmith_backends.render.llvm.products.product import NAMES, render_products

_KINDS: dict[str, Any] = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "float": ctypes.c_float}


class OwnProduct:
    """Machine code of `fs_product`; `address` is the function's, valid while this object lives."""

    def __init__(self, text: str) -> None:
        known = machine()
        process = ctypes.CDLL(None)
        binding.add_symbol("aligned_alloc", ctypes.cast(process.aligned_alloc, ctypes.c_void_p).value)
        module = binding.parse_assembly(text)
        module.verify()
        passes, builder = optimizer()
        passes.run(module, builder)
        self.engine = binding.create_mcjit_compiler(module, known.target_machine())
        self.engine.finalize_object()
        self.address = self.engine.get_function_address("fs_product")
        self.call = ctypes.CFUNCTYPE(ctypes.c_int32, *(_KINDS[name.split()[0]] for name in NAMES))(self.address)


@functools.cache
def own_product() -> OwnProduct:
    """Compiled at its first use."""
    return OwnProduct(render_products(machine().target))
