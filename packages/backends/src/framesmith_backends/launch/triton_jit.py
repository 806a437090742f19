"""Generated Triton sources as functions: launched on tensors and numbers, or compiled ahead of time to a cubin."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from framesmith_backends.launch import triton_support
from framesmith_backends.launch.kernel_runs import KernelRun, number_function
from framesmith_backends.launch.vector_flags import Code, sound
from framesmith_backends.render.triton.kernel import ALIGNMENT, MOST_PROGRAMS, TritonKernel

_LOADED: dict[tuple[str, bool], Any] = {}


def load(kernel: TritonKernel, aligned: bool = False) -> Any:
    """The kernel as a Triton function; the same source is loaded once.

    It is compiled once for all numbers, `aligned` for those that `kernel.aligned` names being divisible by 16.
    """
    key = hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    found = _LOADED.get((key, aligned))
    if found is None:
        # Triton reads a function's source back through `inspect`, which asks `linecache`.
        file = f"<framesmith triton {key}>"
        linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(True), file)
        space: dict[str, Any] = {
            "triton": triton,
            "tl": tl,
            "fs": triton_support,
            "__name__": "framesmith_backends.generated",
        }
        exec(compile(kernel.source, file, "exec"), space)
        some = kernel.aligned if aligned else ()
        general = [f"n{k}" for k in range(len(kernel.numbers)) if k not in some]
        jit = triton.jit(do_not_specialize=[*general, *(["first"] if kernel.has_first else [])])
        found = _LOADED[key, aligned] = jit(space[kernel.name])
    return found


def compiled(kernel: TritonKernel, capability: int, aligned: bool = False, anywhere: bool = False) -> Code:
    """What Triton makes of the kernel for that compute capability (90: sm_90); no GPU is needed.

    Tensors begin at multiples of 16 bytes, or `anywhere`; `aligned` is as `load` has it.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict(kernel.parameters)
    pointers = len(kernel.pointers)
    places = [*range(0 if anywhere else pointers), *(pointers + k for k in kernel.aligned if aligned)]
    attrs = {(k,): [["tt.divisibility", ALIGNMENT]] for k in places}
    source = ASTSource(load(kernel, aligned), signature, {}, attrs)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=kernel.options)
    return sound(found, kernel, capability)


def entry(run: KernelRun) -> Callable[..., None]:
    """A function of the launch list's tensors and numbers that has Triton's interpreter run the kernels in order."""
    steps = list(zip(map(launcher, run.kernels), run.places, strict=True))

    def call(*values: Any) -> None:
        known = run.arguments(values)
        for launch, places in steps:
            launch([known[k] for k in places])

    return call


def launcher(kernel: TritonKernel) -> Callable[[list[Any]], None]:
    """A function that launches the kernel on its arguments, for any sizes."""
    if not kernel.numbers and not kernel.has_first:
        function, grid, options = load(kernel), (kernel.grid,), kernel.options

        def launch(values: list[Any]) -> None:
            function[grid](*values, **options)

        return launch
    forms = [_launcher_of_form(form) for form in kernel.forms]
    if len(forms) == 1:
        return forms[0]
    row, pointers = number_function(kernel.row, kernel), len(kernel.pointers)

    def choose(values: list[Any]) -> None:
        forms[row(*values[pointers:]) > kernel.block](values)

    return choose


def _launcher_of_form(kernel: TritonKernel) -> Callable[[list[Any]], None]:
    """The launches of one form: none for an empty grid, several for a huge one."""
    grid, aligned, pointers = number_function(kernel.grid, kernel), kernel.aligned, len(kernel.pointers)
    places = [pointers + k for k in aligned]
    general = load(kernel)
    special = load(kernel, True) if aligned else general
    options = kernel.options

    def launch(values: list[Any]) -> None:
        programs = grid(*values[pointers:])
        function = general if any(values[k] % ALIGNMENT for k in places) else special
        for first in range(0, programs, MOST_PROGRAMS):
            rest = (first,) if kernel.has_first else ()
            count = min(programs - first, MOST_PROGRAMS)
            function[(count,)](*values, *rest, **options)

    return launch
