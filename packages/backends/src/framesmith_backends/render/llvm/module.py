"""A module of kernels and the native entries that launch them, and matmuls between them.

An entry is a CPython function in the vectorcall style of METH_FASTCALL: it takes the tensors of one launch
list, reads their data pointers through torch's stable C shim, and runs the kernels in order, those with
enough work on the process's own OpenMP threads. The interpreter lock is released for long lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from framesmith_backends.ir.canonical import kernel_form
from framesmith_backends.ir.expr import Number, cost
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import Item, Matmul
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic.size import Sym, Symbol, hint
from framesmith_backends.render.llvm.blas import BLAS, MATMULS_BEGIN, MATMULS_END, emit_matmul, emit_too_large
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.kernel import Shape, render_kernel
from framesmith_backends.render.llvm.loops.sizes import emit_size
from framesmith_backends.render.llvm.runtime import FAILURES, INNER, NUMBERS, RUNTIME, attributes
from framesmith_backends.target import Processor

# Below this many estimated cycles a kernel is not worth waking threads for; each thread gets at least half.
PARALLEL_CYCLES = 60_000
# Above this many the interpreter lock is released.
RELEASE_CYCLES = 100_000
# The end of an entry that returns None.
RETURN_NONE = ("  call void @Py_IncRef(ptr @_Py_NoneStruct)", "  ret ptr @_Py_NoneStruct", "}")
# So many launches are one function: LLVM's time for it grows with the square of its calls, its stack with their number.
PART = 64


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel or matmul on the entry's buffers, and on its numbers, at these positions."""

    item: Item
    arguments: tuple[int, ...]
    numbers: tuple[int, ...] = ()


@dataclass(slots=True)
class Module:
    """The text being gathered: distinct kernel functions by body, declarations, entries.

    `rendered` has the functions' names, and the extents, by the kernels' canonical structure.
    """

    target: Processor
    bytes_to_handle: int
    tensor_types: tuple[str, ...]
    strict: bool = False
    functions: dict[str, str] = field(default_factory=dict)
    rendered: dict[Hashable, tuple[str, Shape]] = field(default_factory=dict)
    declarations: dict[str, None] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def text(self) -> str:
        metadata = '!0 = !{!"branch_weights", i32 1, i32 100000}\n!1 = !{}'
        parts = [*self.declarations, RUNTIME, _pointers(self), *self.functions.values(), *self.entries]
        return "\n\n".join([*parts, attributes(self.target), metadata])


def _pointers(m: Module) -> str:
    """`fs.pointers(args, n, table)`: data pointers of n tensors; nonzero with a Python error set if one is none."""
    names = m.tensor_types
    tests = [f"  %is{k} = icmp eq ptr %type, @{name}" for k, name in enumerate(names)]
    exact = "%is0"
    for k in range(1, len(names)):
        tests.append(f"  %any{k} = or i1 {exact}, %is{k}")
        exact = f"%any{k}"
    joined = "\n".join(tests)
    declared = "\n".join(f"@{name} = external global i8" for name in names)
    return f"""{declared}

define internal i32 @fs.pointers(ptr %args, i64 %n, ptr %table) {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %good ]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %one, label %done
one:
  %slot = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %slot
  %typeslot = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %typeslot
{joined}
  br i1 {exact}, label %tensor, label %subclass
subclass:
  %derived = call i32 @PyType_IsSubtype(ptr %type, ptr @{m.tensor_types[0]})
  %yes = icmp ne i32 %derived, 0
  br i1 %yes, label %tensor, label %bad
tensor:
  %handle = getelementptr i8, ptr %object, i64 {m.bytes_to_handle}
  %where = getelementptr ptr, ptr %table, i64 %k
  %error = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %where)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %bad, label %good
good:
  %next = add i64 %k, 1
  br label %loop
done:
  ret i32 0
bad:
  %exception = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %exception, ptr @fs.message)
  ret i32 1
}}"""


def cycles(item: Item, target: Processor) -> int:
    """A rough count of cycles the kernel or matmul takes on one thread, by the hints of its sizes."""
    return hint(item.points) * _point_cycles(item) // target.float_lanes


def _point_cycles(item: Item) -> int:
    return cost(*(value for one in item.passes for value in one.values)) + 4 if isinstance(item, Kernel) else 1


def add_kernel(m: Module, kernel: Kernel) -> tuple[str, Shape]:
    """The name of the kernel's function, and the kernel's own extents.

    Kernels whose functions have the same text share one: they may differ in names, and in the extent of the
    parallel loop, which is an argument.
    """
    structure = kernel_form(kernel)
    if structure is not None and structure in m.rendered:
        return m.rendered[structure]
    text, shape, declarations = render_kernel(kernel, "KERNEL", m.target, m.strict)
    if text not in m.functions:
        m.functions[text] = text.replace("@KERNEL", f"@k{len(m.functions)}", 1)
        m.declarations.update(declarations)
    found = m.functions[text].split("@", 1)[1].split("(", 1)[0], shape
    if structure is not None:
        m.rendered[structure] = found
    return found


def add_entry(
    m: Module,
    name: str,
    count: int,
    launches: Sequence[Launch],
    numbers: Sequence[Symbol | Number] = (),
    inner: Sequence[int] = (),
) -> None:
    """An entry taking `count` tensors, then numbers, that runs the launches in order.

    The buffers after the tensors lie in the last of these, `inner` bytes from its start.
    """
    has_matmuls = any(isinstance(launch.item, Matmul) for launch in launches)
    failures = [check.failure for launch in launches if isinstance(launch.item, Kernel) for check in launch.item.checks]
    head = [
        f"define ptr @{name}(ptr %self, ptr %args, i64 %n) {{",
        "entry:",
        f"  %table = alloca [{count + len(inner)} x ptr], align 16",
    ]
    body = inner_lines(m, name, count, inner)
    given = [number_value(k, one).typed for k, one in enumerate(numbers)] + ["ptr %table"]
    if has_matmuls:
        m.declarations.update(dict.fromkeys(BLAS))
        head.append("  %failure = alloca i32")
        body += [f"  {line}" for line in MATMULS_BEGIN]
        given += ["i1 %exact", "ptr %failure"]
    if failures:
        head.append(f"  %failed.checks = alloca [{len(failures)} x i8]")
        body.append(f"  call void @llvm.memset.p0.i64(ptr %failed.checks, i8 0, i64 {len(failures)}, i1 false)")
        given.append("ptr %failed.checks")
    body += _launches_lines(m, name, launches, head, ", ".join(given))
    counts = _counts_lines(launches)
    block = "counted" if counts else "begin" if numbers else "run"
    lines = [*head, *begin_lines(m, count, numbers), *counts, *_unlocked(m, launches, body, block)]
    if has_matmuls:
        lines += MATMULS_END
    m.entries.append("\n".join([*lines, *_failures_lines(m, name, failures), *RETURN_NONE]))


def begin_lines(m: Module, count: int, numbers: Sequence[Symbol | Number]) -> list[str]:
    """Fill the table with the tensors' data pointers, and read the numbers behind them, or return with an error."""
    lines = [
        f"  %failed = call i32 @fs.pointers(ptr %args, i64 {count}, ptr %table)",
        "  %bad = icmp ne i32 %failed, 0",
        "  br i1 %bad, label %error, label %run",
        "error:",
        "  ret ptr null",
        "run:",
    ]
    if not numbers:
        return lines
    m.declarations.update(dict.fromkeys(NUMBERS))
    for k, one in enumerate(numbers):
        function = "@PyLong_AsLongLong" if isinstance(one, Symbol) else "@PyFloat_AsDouble"
        lines += [
            f"  %where{k} = getelementptr ptr, ptr %args, i64 {count + k}",
            f"  %object{k} = load ptr, ptr %where{k}",
            f"  %number{k} = call {number_value(k, one).kind} {function}(ptr %object{k})",
        ]
    # A number may be too large for 64 bits.
    return [
        *lines,
        "  %raised = call ptr @PyErr_Occurred()",
        "  %fine = icmp eq ptr %raised, null",
        "  br i1 %fine, label %begin, label %error",
        "begin:",
    ]


def number_value(k: int, number: Symbol | Number) -> Value:
    """The k-th number of an entry."""
    return Value(f"%number{k}", "i64" if isinstance(number, Symbol) else "double")


def _failures_lines(m: Module, name: str, failures: Sequence[Failure]) -> list[str]:
    """Raise the exception of the first check that failed, if one did."""
    if not failures:
        return []
    m.declarations.update(dict.fromkeys(FAILURES))
    messages = []
    for failure in failures:
        encoded = failure.message.encode()
        messages.append(f"@fs.says.{hashlib.sha256(encoded).hexdigest()[:16]}")
        values = ", ".join(f"i8 {byte}" for byte in (*encoded, 0))
        m.declarations[f"@PyExc_{failure.exception} = external global ptr"] = None
        m.declarations[f"{messages[-1]} = private constant [{len(encoded) + 1} x i8] [{values}]"] = None
    exceptions = [f"@PyExc_{failure.exception}" for failure in failures]
    for what, globals_ in (("exceptions", exceptions), ("messages", messages)):
        values = ", ".join(f"ptr {one}" for one in globals_)
        m.declarations[f"@{name}.{what} = private constant [{len(failures)} x ptr] [{values}]"] = None
    given = f"ptr %failed.checks, ptr @{name}.exceptions, ptr @{name}.messages, i64 {len(failures)}"
    return [
        f"  %raises = call i1 @fs.raise({given})",
        "  br i1 %raises, label %check.failed, label %checked", "check.failed:", "  ret ptr null", "checked:",
    ]  # fmt: skip


def _launches_lines(
    m: Module, name: str, launches: Sequence[Launch], head: list[str], given: str, checks: int = 0
) -> list[str]:
    """The launches in order, behind so many checks; many are in functions of their own, which take `given`."""
    calls: list[str] = []
    if len(launches) <= PART:
        for number, launch in enumerate(launches):
            calls += _launch_lines(m, number, launch, head, checks)
            checks += _checks_of(launch)
        return calls
    for start in range(0, len(launches), PART):
        part = f"{name}.part{start // PART}"
        lines: list[str] = []
        body = _launches_lines(m, part, launches[start : start + PART], lines, given, checks)
        checks += sum(map(_checks_of, launches[start : start + PART]))
        define = [f"define internal void @{part}({given}) {{", "entry:"]
        m.entries.append("\n".join([*define, *lines, *body, "  ret void", "}"]))
        calls.append(f"  call void @{part}({given})")
    return calls


def _checks_of(launch: Launch) -> int:
    return len(launch.item.checks) if isinstance(launch.item, Kernel) else 0


def _counts_lines(launches: Sequence[Launch]) -> list[str]:
    """An error where a matmul has a size that BLAS cannot count."""
    b = Builder(prefix="c")
    large = emit_too_large(b, ((one.item, _known(one)) for one in launches if isinstance(one.item, Matmul)))
    if large is None:
        return []
    return [
        *(f"  {line}" for line in b.out), f"  br i1 {large.text}, label %large, label %counted",
        "large:", "  %overflow = load ptr, ptr @PyExc_OverflowError",
        "  call void @PyErr_SetString(ptr %overflow, ptr @fs.large)", "  ret ptr null",
        "counted:",
    ]  # fmt: skip


def inner_lines(m: Module, name: str, count: int, inner: Sequence[int]) -> list[str]:
    """Fill the table behind the first `count` entries."""
    if not inner:
        return []
    m.declarations[INNER] = None
    offsets = f"[{len(inner)} x i64]"
    m.declarations[f"@{name}.inner = private constant {offsets} [{', '.join(f'i64 {at}' for at in inner)}]"] = None
    return [
        f"  %arena.slot = getelementptr ptr, ptr %table, i64 {count - 1}",
        f"  call void @fs.inner(ptr %arena.slot, ptr @{name}.inner, i64 {len(inner)})",
    ]


def _unlocked(m: Module, launches: Sequence[Launch], body: list[str], block: str) -> list[str]:
    """The launches, with the interpreter lock released where they take long; written in the block of that name."""
    save, restore = "call ptr @PyEval_SaveThread()", "call void @PyEval_RestoreThread(ptr"
    points = [one.item.points for one in launches]
    if not any(isinstance(n, Sym) for n in points):
        total = sum(cycles(one.item, m.target) for one in launches)
        return body if total <= RELEASE_CYCLES else [f"  %state = {save}", *body, f"  {restore} %state)"]
    b = Builder(prefix="w")
    work = constant(0, "i64")
    for launch, count in zip(launches, points, strict=True):
        work = b.add(work, b.mul(emit_size(b, count, _known(launch)), _point_cycles(launch.item)))
    long = b.compare("ugt", work, RELEASE_CYCLES * m.target.float_lanes).text
    return [
        *(f"  {line}" for line in b.out), f"  br i1 {long}, label %release, label %start", "release:",
        f"  %saved = {save}", "  br label %start",
        "start:", f"  %state = phi ptr [ null, %{block} ], [ %saved, %release ]",
        *body, f"  br i1 {long}, label %take, label %done",
        "take:", f"  {restore} %state)", "  br label %done", "done:",
    ]  # fmt: skip


def _known(launch: Launch) -> dict[Symbol, Value]:
    """The entry's values of the symbols of a launch."""
    numbers = zip(launch.item.numbers, launch.numbers, strict=True)
    return {symbol: number_value(at, symbol) for symbol, at in numbers if isinstance(symbol, Symbol)}


def _measured_launch(m: Module, number: int, launch: Launch, function: str, shape: Shape) -> list[str]:
    """A launch whose extent, and number of threads, depend on sizes known now."""
    known = _known(launch)
    b = Builder(prefix=f"m{number}.")
    extent, points = emit_size(b, shape.extent, known), emit_size(b, shape.points, known)
    # As many threads as have enough to do each.
    most = b.binary("udiv", b.mul(points, 2 * _point_cycles(launch.item)), PARALLEL_CYCLES * m.target.float_lanes)
    most = b.convert("trunc", b.least(b.least(most, extent), 1 << 16), "i32")
    text = [f"  {line}" for line in b.out]
    return [*text, f"  call void @fs.parallel(ptr @{function}, ptr %t{number}, {extent.typed}, {most.typed})"]


def _launch_lines(m: Module, number: int, launch: Launch, head: list[str], checks: int) -> list[str]:
    """Read the item's buffers, and run it; its checks are behind so many others."""
    lines: list[str] = []
    for k, argument in enumerate(launch.arguments):
        lines += [
            f"  %f{number}.{k} = getelementptr ptr, ptr %table, i64 {argument}",
            f"  %p{number}.{k} = load ptr, ptr %f{number}.{k}",
        ]
    pointers = [Value(f"%p{number}.{k}", "ptr") for k in range(len(launch.arguments))]
    if isinstance(launch.item, Matmul):
        names = [param.name for param in launch.item.params]
        b = Builder(prefix=f"b{number}.")
        emit_matmul(b, launch.item, dict(zip(names, pointers, strict=True)), _known(launch))
        return [*lines, *(f"  {line}" for line in b.out)]
    assert isinstance(launch.item, Kernel)
    return [*lines, *_kernel_lines(m, number, launch, launch.item, head, checks)]


def _kernel_lines(m: Module, number: int, launch: Launch, kernel: Kernel, head: list[str], checks: int) -> list[str]:
    """Fill the kernel's own table of buffers and numbers, and call it."""
    function, shape = add_kernel(m, kernel)
    table = f"%t{number}"
    size = len(launch.arguments) + len(launch.numbers)
    head.append(f"  {table} = alloca [{size + bool(kernel.checks)} x ptr], align 16")
    lines: list[str] = []
    for k in range(len(launch.arguments)):
        lines += [
            f"  %g{number}.{k} = getelementptr ptr, ptr {table}, i64 {k}",
            f"  store ptr %p{number}.{k}, ptr %g{number}.{k}",
        ]
    for k, at in enumerate(launch.numbers):
        slot = f"%h{number}.{k}"
        lines += [
            f"  {slot} = getelementptr ptr, ptr {table}, i64 {len(launch.arguments) + k}",
            f"  store {number_value(at, kernel.numbers[k]).typed}, ptr {slot}",
        ]
    if kernel.points == 0:
        return []
    if kernel.checks:
        lines += [
            f"  %check{number} = getelementptr i8, ptr %failed.checks, i64 {checks}",
            f"  %d{number} = getelementptr ptr, ptr {table}, i64 {size}",
            f"  store ptr %check{number}, ptr %d{number}",
        ]
    if isinstance(shape.extent, Sym) or isinstance(shape.points, Sym):
        return [*lines, *_measured_launch(m, number, launch, function, shape)]
    work = cycles(kernel, m.target)
    most = min(shape.extent, work * 2 // PARALLEL_CYCLES, 1 << 16)
    if most < 2:
        return [*lines, f"  call void @{function}(ptr {table}, i64 0, i64 {shape.extent})"]
    return [*lines, f"  call void @fs.parallel(ptr @{function}, ptr {table}, i64 {shape.extent}, i32 {most})"]
