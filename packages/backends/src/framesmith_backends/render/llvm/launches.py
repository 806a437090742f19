"""The native entry of a run of CUDA kernels: one call from Python, which launches them all on torch's current stream.

An entry takes tensors and numbers as those of a module of CPU kernels do (`module.py`). It calls Python only where it
is not made for what it meets: another device is current, or a tensor does not begin at a multiple of 16 bytes, for
which the kernels are compiled. Then it hands its arguments to the function at the end of its table of handles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.symbolic.size import Size, Symbol, surely_positive
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.sizes import emit_size
from framesmith_backends.render.llvm.module import Module, inner_lines, number_lines
from framesmith_backends.render.llvm.runtime import NUMBERS
from framesmith_backends.render.triton.kernel import ALIGNMENT, MOST_PROGRAMS, TritonKernel
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
    """One way to launch a kernel: its threads, shared bytes, and the place of its handle in the entry's table."""

    threads: int
    shared: int
    handle: int


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a kernel: for any numbers, and for those that are aligned where it has such."""

    kernel: TritonKernel
    general: Variant
    aligned: Variant | None


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A kernel's forms, and where the entry's tensors and numbers have its arguments, the tensors first."""

    forms: tuple[Form, ...]
    arguments: tuple[int, ...]


def handles_name(entry: str) -> str:
    """The global that holds the handles of the kernels' variants, and last what is called in their place."""
    return f"{entry}.handles"


def add_launches(
    m: Module,
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
    b = Builder(prefix="l")
    b.line(f"%bad = call i32 @fs.pointers(ptr %args, i64 {count}, ptr %table)")
    _branch(b, b.compare("ne", Value("%bad", "i32"), 0), "error", "read")
    _block(b, "error")
    b.line("ret ptr null")
    _block(b, "read")
    known = _numbers(m, b, count, numbers)
    _check_place(b, count, device)
    _block(b, "elsewhere")
    instead = b.emit(f"load ptr, ptr getelementptr (ptr, ptr {table}, i64 {handles})", "ptr")
    b.line(f"%result = call ptr @PyObject_Vectorcall({instead.typed}, ptr %args, i64 %n, ptr null)")
    b.line("ret ptr %result")
    _block(b, "here")
    b.line(f"%asked = call i32 @aoti_torch_get_current_cuda_stream(i32 {device}, ptr %stream.slot)")
    _branch(b, b.compare("eq", Value("%asked", "i32"), 0), "launch", "failed.stream")
    _block(b, "failed.stream")
    b.line("store i32 %asked, ptr %code")
    b.line("br label %failed")
    _block(b, "launch")
    for line in inner_lines(m, name, count, inner):
        b.line(line.strip())
    b.line("%stream = load ptr, ptr %stream.slot")
    most = 0
    for number, launch in enumerate(launches):
        most = max(most, len(launch.forms[0].kernel.parameters) + SCRATCH_PARAMETERS)
        _launch(b, number, launch, table, known, numbers, count + len(inner))
    b.line("%sum = load i32, ptr %code")
    _branch(b, b.compare("eq", Value("%sum", "i32"), 0), "done", "failed")
    _block(b, "failed")
    b.line("%why = load i32, ptr %code")
    b.line("%exception = load ptr, ptr @PyExc_RuntimeError")
    b.line("%told = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %exception, ptr @fs.launch.failed, i32 %why)")
    b.line("ret ptr null")
    _block(b, "done")
    b.line("call void @Py_IncRef(ptr @_Py_NoneStruct)")
    b.line("ret ptr @_Py_NoneStruct")
    places = [
        f"%table = alloca [{count + len(inner)} x ptr], align 16", f"%parameters = alloca [{most} x ptr], align 16",
        f"%known = alloca [{max(len(numbers), 1)} x i64], align 16", "%first = alloca i64", "%nothing = alloca ptr",
        "%stream.slot = alloca ptr", "%device = alloca i32", "%code = alloca i32",
        "store i32 0, ptr %code", "store ptr null, ptr %nothing", "store i32 -1, ptr %device",
    ]  # fmt: skip
    head = [f"define ptr @{name}(ptr %self, ptr %args, i64 %n) {{", "entry:"]
    m.entries.append("\n".join([*head, *places, *(str(line) for line in b.out), "}"]))


def _block(b: Builder, label: str) -> None:
    b.line(f"{label}:")


def _branch(b: Builder, holds: Value, then: str, other: str) -> None:
    b.line(f"br {holds.typed}, label %{then}, label %{other}")


def _numbers(m: Module, b: Builder, count: int, numbers: Sequence[Symbol | Number]) -> dict[Symbol, Value]:
    """Read the numbers, and lay them where launches find them; symbols' values."""
    known: dict[Symbol, Value] = {}
    if not numbers:
        return known
    m.declarations.update(dict.fromkeys(NUMBERS))
    for k, one in enumerate(numbers):
        for line in number_lines(k, count + k, isinstance(one, Symbol)):
            b.line(line)
        value = Value(f"%number{k}", "i64" if isinstance(one, Symbol) else "double")
        b.line(f"store {value.typed}, ptr {_slot(b, '%known', k)}")
        if isinstance(one, Symbol):
            known[one] = value
    b.line("%raised = call ptr @PyErr_Occurred()")  # a number may be too large for 64 bits
    _branch(b, b.compare("eq", Value("%raised", "ptr"), Value("null", "ptr")), "numbered", "error")
    _block(b, "numbered")
    return known


def _slot(b: Builder, array: str, at: int) -> str:
    return b.emit(f"getelementptr ptr, ptr {array}, i64 {at}", "ptr").text


def _check_place(b: Builder, count: int, device: int) -> None:
    """Go `elsewhere` unless the device is current, and all tensors are aligned."""
    bits = constant(0, "i64")
    for k in range(count):
        address = b.emit(f"load i64, ptr {_slot(b, '%table', k)}", "i64")
        bits = b.binary("or", bits, address)
    odd = b.binary("and", bits, constant(ALIGNMENT - 1, "i64"))
    b.line("%asked.device = call i32 @cuCtxGetDevice(ptr %device)")
    current = b.emit("load i32, ptr %device", "i32")
    moved = b.emit(f"xor {current.typed}, {device}", "i32")
    wrong = b.binary("or", b.convert("zext", moved, "i64"), odd)
    _branch(b, b.compare("eq", wrong, 0), "here", "elsewhere")


def _launch(
    b: Builder,
    number: int,
    launch: CudaLaunch,
    table: str,
    known: dict[Symbol, Value],
    numbers: Sequence[Symbol | Number],
    count: int,
) -> None:
    """Lay out addresses of the arguments, choose the variant by the numbers, launch what its grid holds."""
    kernel = launch.forms[0].kernel
    slots = [("%table", at) if at < count else ("%known", at - count) for at in launch.arguments]
    addresses = [_slot(b, *slot) for slot in slots]
    addresses += ["%first"] if kernel.has_first else []
    for k, address in enumerate([*addresses, *["%nothing"] * SCRATCH_PARAMETERS]):
        b.line(f"store ptr {address}, ptr {_slot(b, '%parameters', k)}")
    own = {symbol: known[symbol] for symbol in kernel.numbers if isinstance(symbol, Symbol)}
    done = f"done{number}"
    if len(launch.forms) > 1:
        held = b.compare("sle", emit_size(b, kernel.row, own), constant(kernel.block, "i64"))
        _branch(b, held, f"form{number}.0", f"form{number}.1")
    for k, form in enumerate(launch.forms):
        if len(launch.forms) > 1:
            _block(b, f"form{number}.{k}")
        _launch_form(b, f"{number}.{k}", form, table, own)
        if len(launch.forms) > 1:
            b.line(f"br label %{done}")
    if len(launch.forms) > 1:
        _block(b, done)


def _launch_form(b: Builder, name: str, form: Form, table: str, known: dict[Symbol, Value]) -> None:
    handle, shared = _handle(b, form.general, table), constant(form.general.shared, "i32")
    if form.aligned is not None:
        sizes = [known[n] for k in form.kernel.aligned if isinstance(n := form.kernel.numbers[k], Symbol)]
        bits = sizes[0]
        for size in sizes[1:]:
            bits = b.binary("or", bits, size)
        even = b.compare("eq", b.binary("and", bits, constant(ALIGNMENT - 1, "i64")), 0)
        handle = b.select(even, _handle(b, form.aligned, table), handle)
        shared = b.select(even, constant(form.aligned.shared, "i32"), shared)
    grid: Size = form.kernel.grid
    size = emit_size(b, grid, known)
    if form.kernel.has_first:
        _launch_in_turns(b, name, handle, shared, form, size)
        return
    if not surely_positive(grid):
        _branch(b, b.compare("sgt", size, 0), f"some{name}", f"none{name}")
        _block(b, f"some{name}")
    _call(b, handle, b.convert("trunc", size, "i32"), form.general.threads, shared)
    if not surely_positive(grid):
        b.line(f"br label %none{name}")
        _block(b, f"none{name}")


def _handle(b: Builder, variant: Variant, table: str) -> Value:
    return b.emit(f"load ptr, ptr getelementptr (ptr, ptr {table}, i64 {variant.handle})", "ptr")


def _call(b: Builder, handle: Value, grid: Value, threads: int, shared: Value) -> None:
    """Launch; of several errors the bits are joined."""
    error = b.emit(
        f"call i32 @cuLaunchKernel({handle.typed}, {grid.typed}, i32 1, i32 1, i32 {threads}, i32 1, i32 1, "
        f"{shared.typed}, ptr %stream, ptr %parameters, ptr null)",
        "i32",
    )
    before = b.emit("load i32, ptr %code", "i32")
    b.line(f"store {b.binary('or', before, error).typed}, ptr %code")


def _launch_in_turns(b: Builder, name: str, handle: Value, shared: Value, form: Form, grid: Value) -> None:
    """Launches of no more programs than one may have, each told the number of its first one; none for no programs."""
    b.line("store i64 0, ptr %first")
    b.line(f"br label %turn{name}")
    _block(b, f"turn{name}")
    first = b.emit("load i64, ptr %first", "i64")
    left = b.sub(grid, first)
    _branch(b, b.compare("sgt", left, 0), f"take{name}", f"end{name}")
    _block(b, f"take{name}")
    many = b.compare("sgt", left, MOST_PROGRAMS)
    grid = b.convert("trunc", b.select(many, constant(MOST_PROGRAMS, "i64"), left), "i32")
    _call(b, handle, grid, form.general.threads, shared)
    b.line(f"store {b.add(first, MOST_PROGRAMS).typed}, ptr %first")
    b.line(f"br label %turn{name}")
    _block(b, f"end{name}")
