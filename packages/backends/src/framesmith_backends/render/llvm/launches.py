"""The native entry of a run of CUDA kernels: one call from Python, which launches them all on torch's current stream.

An entry takes tensors and numbers as those of a module of CPU kernels do (`module.py`). Where another device is
current, or a tensor does not begin at a multiple of 16 bytes, for which the kernels are compiled, it hands its
arguments to the Python function at the end of its table of handles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.symbolic.size import Symbol, surely_positive
from framesmith_backends.render.llvm.builder import Value, constant
from framesmith_backends.render.llvm.loops.sizes import emit_size
from framesmith_backends.render.llvm.module import (
    RETURN_NONE,
    KernelModule,
    begin_lines,
    function_text,
    inner_lines,
    number_value,
)  # fmt: skip
from framesmith_backends.render.llvm.writer import Writer
from framesmith_backends.render.triton.kernel import MOST_PROGRAMS, POINTER_ALIGNMENT, SIZE_DIVISOR, TritonKernel
from framesmith_backends.target import SCRATCH_PARAMETERS

FAILED = "CUDA error %d in launching a kernel"
DECLARATIONS = (
    "declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)",
    "declare i32 @cuCtxGetDevice(ptr)",
    "declare i32 @aoti_torch_get_current_cuda_stream(i32, ptr)",
    "declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)",
    "declare ptr @PyErr_Format(ptr, ptr, ...)",
    "@PyExc_RuntimeError = external global ptr",
    f'@fs.launch.failed = private constant [{len(FAILED) + 1} x i8] c"{FAILED}\\00"',
)


@dataclass(frozen=True, slots=True)
class Variant:
    """Code of a kernel: its threads, shared bytes, and the index of its handle in the entry's table."""

    threads: int
    shared: int
    handle: int


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a kernel, for short or long rows: for any numbers, and for aligned ones where it has such."""

    kernel: TritonKernel
    general: Variant
    aligned: Variant | None


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A kernel's versions, and the positions of its arguments among the entry's tensors and numbers."""

    versions: tuple[Version, ...]
    arguments: tuple[int, ...]


def handles_name(entry: str) -> str:
    """The global that holds the handles of the kernels' variants, and last what is called in their place."""
    return f"{entry}.handles"


def add_launches(
    m: KernelModule,
    name: str,
    count: int,
    launches: Sequence[CudaLaunch],
    handles: int,
    device: int,
    numbers: Sequence[Symbol | Number] = (),
    inner: Sequence[int] = (),
) -> None:
    """An entry taking `count` tensors, then numbers, that launches the kernels in order on a device's stream.

    The buffers after the tensors lie in the last of these, `inner` bytes from its start.
    """
    m.declarations.update(dict.fromkeys(DECLARATIONS))
    table = f"@{handles_name(name)}"
    m.declarations[f"{table} = global [{handles + 1} x ptr] zeroinitializer"] = None
    b = Writer(prefix="l")
    b.out += begin_lines(m, count, numbers)
    for k, one in enumerate(numbers):
        b.line(f"store {number_value(k, one).typed}, ptr {_slot(b, '%known', k)}")
    known = {one: number_value(k, one) for k, one in enumerate(numbers) if isinstance(one, Symbol)}
    _check_device(b, count, device)
    _block(b, "elsewhere")
    instead = b.emit(f"load ptr, ptr getelementptr (ptr, ptr {table}, i64 {handles})", "ptr")
    b.line(f"%result = call ptr @PyObject_Vectorcall({instead.typed}, ptr %args, i64 %n, ptr null)")
    b.line("ret ptr %result")
    _block(b, "here")
    b.line(f"%stream.error = call i32 @aoti_torch_get_current_cuda_stream(i32 {device}, ptr %stream.slot)")
    b.line("store i32 %stream.error, ptr %code")
    _branch(b, b.compare("eq", Value("%stream.error", "i32"), 0), "launch", "launch.failed")
    _block(b, "launch")
    b.out += inner_lines(m, name, count, inner)
    b.line("%stream = load ptr, ptr %stream.slot")
    for number, launch in enumerate(launches):
        _launch(b, number, launch, table, known, count + len(inner))
    b.line("%sum = load i32, ptr %code")
    _branch(b, b.compare("eq", Value("%sum", "i32"), 0), "done", "launch.failed")
    _block(b, "launch.failed")
    b.line("%why = load i32, ptr %code")
    b.line("%exception = load ptr, ptr @PyExc_RuntimeError")
    b.line("%raised.error = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %exception, ptr @fs.launch.failed, i32 %why)")
    b.line("ret ptr null")
    _block(b, "done")
    most = max((len(one.versions[0].kernel.parameters) for one in launches), default=0) + SCRATCH_PARAMETERS
    cells = [
        f"%table = alloca [{count + len(inner)} x ptr], align 16", f"%parameters = alloca [{most} x ptr], align 16",
        f"%known = alloca [{max(len(numbers), 1)} x i64], align 16", "%first = alloca i64", "%nothing = alloca ptr",
        "%stream.slot = alloca ptr", "%device = alloca i32", "%code = alloca i32",
        "store i32 0, ptr %code", "store ptr null, ptr %nothing", "store i32 -1, ptr %device",
    ]  # fmt: skip
    lines = [*cells, *b.out, *RETURN_NONE]
    m.entries.append(function_text(f"define ptr @{name}(ptr %self, ptr %args, i64 %n)", lines))


def _block(b: Writer, label: str) -> None:
    b.line(f"{label}:")


def _branch(b: Writer, holds: Value, then: str, other: str) -> None:
    b.line(f"br {holds.typed}, label %{then}, label %{other}")


def _slot(b: Writer, array: str, at: int) -> str:
    return b.emit(f"getelementptr ptr, ptr {array}, i64 {at}", "ptr").text


def _check_device(b: Writer, count: int, device: int) -> None:
    """Go `elsewhere` unless the device is current, and all tensors are aligned."""
    bits = constant(0, "i64")
    for k in range(count):
        bits = b.binary("or", bits, b.emit(f"load i64, ptr {_slot(b, '%table', k)}", "i64"))
    odd = b.binary("and", bits, POINTER_ALIGNMENT - 1)
    b.line("%device.error = call i32 @cuCtxGetDevice(ptr %device)")
    other = b.binary("xor", b.emit("load i32, ptr %device", "i32"), device)
    wrong = b.binary("or", b.convert("zext", other, "i64"), odd)
    _branch(b, b.compare("eq", wrong, 0), "here", "elsewhere")


def _launch(b: Writer, number: int, launch: CudaLaunch, table: str, known: Mapping[Symbol, Value], count: int) -> None:
    """Lay out addresses of the arguments, choose the version by the sizes, launch its grid."""
    kernel = launch.versions[0].kernel
    slots = [("%table", at) if at < count else ("%known", at - count) for at in launch.arguments]
    addresses = [_slot(b, *slot) for slot in slots] + ["%first"] * kernel.has_first
    for k, address in enumerate([*addresses, *["%nothing"] * SCRATCH_PARAMETERS]):
        b.line(f"store ptr {address}, ptr {_slot(b, '%parameters', k)}")
    own = {symbol: known[symbol] for symbol in kernel.numbers if isinstance(symbol, Symbol)}
    if len(launch.versions) == 1:
        _launch_version(b, launch.versions[0], table, own)
        return
    name = f"launch{number}"
    held = b.compare("sle", emit_size(b, kernel.row, own), kernel.block)
    _branch(b, held, f"{name}.0", f"{name}.1")
    for k, version in enumerate(launch.versions):
        _block(b, f"{name}.{k}")
        _launch_version(b, version, table, own)
        b.line(f"br label %{name}.done")
    _block(b, f"{name}.done")


def _launch_version(b: Writer, version: Version, table: str, known: dict[Symbol, Value]) -> None:
    """Launch the grid, in turns of no more programs than one launch may have where the kernel takes its first one."""
    kernel, general = version.kernel, version.general
    handle, shared = _handle(b, general, table), constant(general.shared, "i32")
    if version.aligned is not None:
        bits, *sizes = (known[n] for k in kernel.aligned if isinstance(n := kernel.numbers[k], Symbol))
        for size in sizes:
            bits = b.binary("or", bits, size)
        even = b.compare("eq", b.binary("and", bits, SIZE_DIVISOR - 1), 0)
        handle = b.select(even, _handle(b, version.aligned, table), handle)
        shared = b.select(even, constant(version.aligned.shared, "i32"), shared)
    grid = emit_size(b, kernel.grid, known)
    if not kernel.has_first:
        some = nullcontext() if surely_positive(kernel.grid) else b.when(b.compare("sgt", grid, 0))
        with some:
            _call(b, handle, grid, general.threads, shared)
        return
    first = Value("%first", "ptr")

    def left() -> Value:
        return b.sub(grid, b.read(first, "i64"))

    b.store(constant(0, "i64"), first, 0)
    with b.repeat(lambda: b.compare("sgt", left(), 0)):
        _call(b, handle, b.least(left(), MOST_PROGRAMS), general.threads, shared)
        b.store(b.add(b.read(first, "i64"), MOST_PROGRAMS), first, 0)


def _handle(b: Writer, variant: Variant, table: str) -> Value:
    return b.emit(f"load ptr, ptr getelementptr (ptr, ptr {table}, i64 {variant.handle})", "ptr")


def _call(b: Writer, handle: Value, programs: Value, threads: int, shared: Value) -> None:
    """Launch; of several errors the bits are joined."""
    error = b.emit(
        f"call i32 @cuLaunchKernel({handle.typed}, {b.convert('trunc', programs, 'i32').typed}, i32 1, i32 1, "
        f"i32 {threads}, i32 1, i32 1, {shared.typed}, ptr %stream, ptr %parameters, ptr null)",
        "i32",
    )
    code = Value("%code", "ptr")
    b.store(b.binary("or", b.read(code, "i32"), error), code, 0)
