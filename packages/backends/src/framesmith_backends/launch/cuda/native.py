"""Runs of CUDA kernels as native entries: their code made and loaded, their handles where the entries find them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence

from framesmith_backends.launch.cuda.cubins import Cubin, cubins
from framesmith_backends.launch.cuda.driver import CALLED, Device
from framesmith_backends.launch.cuda.kernel_runs import KernelRun
from framesmith_backends.launch.llvm.engine import TENSOR_TYPES, CompiledModule, add_symbols, engine_of, machine
from framesmith_backends.render.llvm.launches import CudaLaunch, Variant, Version, add_launches, handles_name
from framesmith_backends.render.llvm.module import KernelModule
from framesmith_backends.render.triton.kernel import TritonKernel


def native_entries(
    runs: Sequence[KernelRun],
    instead: Mapping[str, Callable[..., None]],
    device: Device,
) -> Mapping[str, object]:
    """A native function for each run by its entry's name; `instead` has what they call where they cannot launch."""
    driver = device.driver
    known = machine()
    module = KernelModule(known.target, known.bytes_to_handle, (*TENSOR_TYPES,))
    variants = list(dict.fromkeys(v for run in runs for kernel in run.kernels for v in _variants(kernel)))
    made = dict(zip(variants, cubins(variants, device.capability), strict=True))
    tables = {run.step.entry: _add(module, run, made, device.index) for run in runs}
    add_symbols({name: driver.address(name) for name in CALLED})
    compiled = CompiledModule(engine_of("module", module.text()), list(tables))
    for name, table in tables.items():
        addresses = [driver.kernel(cubin, device.index) for cubin in table]
        where = compiled.engine.get_global_value_address(handles_name(name))
        handles = (ctypes.c_void_p * (len(addresses) + 1)).from_address(where)
        handles[:] = [*addresses, id(instead[name])]
    compiled.kept = dict(instead)
    return compiled.functions()


def _variants(kernel: TritonKernel) -> Iterator[tuple[TritonKernel, bool]]:
    """The compiled variants of the kernel: each, for any numbers and for aligned ones."""
    for form in kernel.versions:
        yield form, False
        if form.aligned:
            yield form, True


def _add(
    module: KernelModule, run: KernelRun, made: Mapping[tuple[TritonKernel, bool], Cubin], device: int
) -> list[Cubin]:
    """Write the run's entry; the code whose handles its table is to hold."""
    table: list[Cubin] = []

    def variant(form: TritonKernel, aligned: bool) -> Variant:
        cubin = made[form, aligned]
        table.append(cubin)
        return Variant(cubin.threads, cubin.shared, len(table) - 1)

    launches = []
    for kernel, positions in zip(run.kernels, run.positions, strict=True):
        found = [(one, variant(one, False), variant(one, True) if one.aligned else None) for one in kernel.versions]
        launches.append(CudaLaunch(tuple(Version(*one) for one in found), positions))
    step = run.step
    offsets = [one.offset for one in step.inner]
    add_launches(module, step.entry, len(step.buffers), launches, len(table), device, step.numbers, offsets)
    return table
