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

    `rendered` are the functions' names, and the extents, by the forms of kernels.
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
    tests = []
    for k, name in enumerate(m.tensor_types):
        tests.append(f"  %is{k} = icmp eq ptr %type, @{name}")
    exact = "%is0"
    for k in range(1, len(m.tensor_types)):
        tests.append(f"  %any{k} = or i1 {exact}, %is{k}")
        exact = f"%any{k}"
    joined = "\n".join(tests)
    declared = "\n".join(f"@{name} = external global i8" for name in m.tensor_types)
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


def _point_cycles(kernel: Item) -> int:
    if not isinstance(kernel, Kernel):
        return 1
    return cost(*(value for one in kernel.passes for value in one.values)) + 4


def add_kernel(m: Module, kernel: Kernel) -> tuple[str, Shape]:
    """The name of the kernel's function, and the kernel's own extents.

    Kernels whose functions have the same text share one: they may differ in names, and in the extent of the
    parallel loop, which is an argument.
    """
    form = kernel_form(kernel)
    found = None if form is None else m.rendered.get(form)
    if found is None:
        text, shape, declarations = render_kernel(kernel, "KERNEL", m.target, m.strict)
        if text not in m.functions:
            m.functions[text] = text.replace("@KERNEL", f"@k{len(m.functions)}", 1)
            m.declarations.update(declarations)
        found = m.functions[text].split("@", 1)[1].split("(", 1)[0], shape
        if form is not None:
            m.rendered[form] = found
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
    lines = [
        f"define ptr @{name}(ptr %self, ptr %args, i64 %n) {{",
        "entry:",
        f"  %table = alloca [{count + len(inner)} x ptr], align 16",
    ]
    body = inner_lines(m, name, count, inner)
    has_matmuls = any(isinstance(launch.item, Matmul) for launch in launches)
    if has_matmuls:
        m.declarations.update(dict.fromkeys(BLAS))
        lines.append("  %failure = alloca i32")
        body += [f"  {line}" for line in MATMULS_BEGIN]
    failures = [check.failure for launch in launches if isinstance(launch.item, Kernel) for check in launch.item.checks]
    if failures:
        lines.append(f"  %failed.checks = alloca [{len(failures)} x i8]")
        body.append(f"  call void @llvm.memset.p0.i64(ptr %failed.checks, i8 0, i64 {len(failures)}, i1 false)")
    given = [f"{'i64' if isinstance(one, Symbol) else 'double'} %number{k}" for k, one in enumerate(numbers)]
    given += ["ptr %table", *(["i1 %exact", "ptr %failure"] if has_matmuls else [])]
    given += ["ptr %failed.checks"] if failures else []
    body += _launches_lines(m, name, launches, lines, ", ".join(given))
    lines += [
        f"  %failed = call i32 @fs.pointers(ptr %args, i64 {count}, ptr %table)",
        "  %bad = icmp ne i32 %failed, 0",
        "  br i1 %bad, label %error, label %run",
        "error:",
        "  ret ptr null",
        "run:",
    ]
    if numbers:
        m.declarations.update(dict.fromkeys(NUMBERS))
        for k, one in enumerate(numbers):
            lines += number_lines(k, count + k, isinstance(one, Symbol))
        # A number may be too large for 64 bits.
        lines += [
            "  %raised = call ptr @PyErr_Occurred()",
            "  %fine = icmp eq ptr %raised, null",
            "  br i1 %fine, label %begin, label %error",
            "begin:",
        ]
    block = "begin" if numbers else "run"
    counts = _counts_lines(launches)
    if counts:
        lines, block = [*lines, *counts], "counted"
    lines += _unlocked(m, launches, body, block)
    if has_matmuls:
        lines += MATMULS_END
    lines += _failures_lines(m, name, failures)
    lines += ["  call void @Py_IncRef(ptr @_Py_NoneStruct)", "  ret ptr @_Py_NoneStruct", "}"]
    m.entries.append("\n".join(lines))


def _failures_lines(m: Module, name: str, failures: Sequence[Failure]) -> list[str]:
    """The exception of the first check that failed, if one did."""
    if not failures:
        return []
    m.declarations.update(dict.fromkeys(FAILURES))
    for failure in failures:
        m.declarations[f"@PyExc_{failure.exception} = external global ptr"] = None
        m.declarations[_message_lines(failure)] = None
    count = len(failures)
    exceptions = ", ".join(f"ptr @PyExc_{failure.exception}" for failure in failures)
    messages = ", ".join(f"ptr @{_message_name(failure)}" for failure in failures)
    m.declarations[f"@{name}.exceptions = private constant [{count} x ptr] [{exceptions}]"] = None
    m.declarations[f"@{name}.messages = private constant [{count} x ptr] [{messages}]"] = None
    return [
        f"  %raises = call i1 @fs.raise(ptr %failed.checks, ptr @{name}.exceptions, ptr @{name}.messages, i64 {count})",
        "  br i1 %raises, label %check.failed, label %checked", "check.failed:", "  ret ptr null", "checked:",
    ]  # fmt: skip


def _message_name(failure: Failure) -> str:
    return f"fs.says.{hashlib.sha256(failure.message.encode()).hexdigest()[:16]}"


def _message_lines(failure: Failure) -> str:
    text = [*failure.message.encode(), 0]
    values = ", ".join(f"i8 {byte}" for byte in text)
    return f"@{_message_name(failure)} = private constant [{len(text)} x i8] [{values}]"


def _launches_lines(
    m: Module, name: str, launches: Sequence[Launch], head: list[str], given: str, checks: int = 0
) -> list[str]:
    """The launches in order; many are in functions of their own, which take the values `given`.

    Before them there were so many checks.
    """
    if len(launches) <= PART:
        found: list[str] = []
        for number, launch in enumerate(launches):
            found += _launch_lines(m, number, launch, head, checks)
            checks += _checks_of(launch)
        return found
    calls: list[str] = []
    for start in range(0, len(launches), PART):
        part = f"{name}.part{start // PART}"
        lines: list[str] = []
        body = _launches_lines(m, part, launches[start : start + PART], lines, given, checks)
        checks += sum(map(_checks_of, launches[start : start + PART]))
        define = f"define internal void @{part}({given}) {{"
        m.entries.append("\n".join([define, "entry:", *lines, *body, "  ret void", "}"]))
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
    """Fill the table's places after the first `count`."""
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
    return {
        symbol: Value(f"%number{at}", "i64")
        for symbol, at in zip(launch.item.numbers, launch.numbers, strict=True)
        if isinstance(symbol, Symbol)
    }


def number_lines(k: int, at: int, integer: bool) -> list[str]:
    """The number among the entry's arguments at that place, which is Python's."""
    read = "i64 @PyLong_AsLongLong" if integer else "double @PyFloat_AsDouble"
    return [
        f"  %where{k} = getelementptr ptr, ptr %args, i64 {at}",
        f"  %object{k} = load ptr, ptr %where{k}",
        f"  %number{k} = call {read}(ptr %object{k})",
    ]


def _measured_launch(m: Module, number: int, launch: Launch, function: str, shape: Shape) -> list[str]:
    """A launch whose extent, and number of threads, depend on sizes known now."""
    known = _known(launch)
    b = Builder(prefix=f"m{number}.")
    extent, points = emit_size(b, shape.extent, known), emit_size(b, shape.points, known)
    # As many threads as have enough to do each.
    most = b.binary("udiv", b.mul(points, 2 * _point_cycles(launch.item)), PARALLEL_CYCLES * m.target.float_lanes)
    most = b.select(b.compare("ult", most, extent), most, extent)
    most = b.convert("trunc", b.select(b.compare("ult", most, 1 << 16), most, constant(1 << 16, "i64")), "i32")
    text = [f"  {line}" for line in b.out]
    return [*text, f"  call void @fs.parallel(ptr @{function}, ptr %t{number}, {extent.typed}, {most.typed})"]


def _launch_lines(m: Module, number: int, launch: Launch, head: list[str], checks: int) -> list[str]:
    """Read the item's buffers, and run it; the places of its checks are behind so many others."""
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
    places = len(launch.arguments) + len(launch.numbers)
    head.append(f"  {table} = alloca [{places + bool(kernel.checks)} x ptr], align 16")
    lines: list[str] = []
    for k in range(len(launch.arguments)):
        lines += [
            f"  %g{number}.{k} = getelementptr ptr, ptr {table}, i64 {k}",
            f"  store ptr %p{number}.{k}, ptr %g{number}.{k}",
        ]
    for k, at in enumerate(launch.numbers):
        slot, kind = f"%h{number}.{k}", "i64" if isinstance(kernel.numbers[k], Symbol) else "double"
        lines += [
            f"  {slot} = getelementptr ptr, ptr {table}, i64 {len(launch.arguments) + k}",
            f"  store {kind} %number{at}, ptr {slot}",
        ]
    if kernel.points == 0:
        return []
    if kernel.checks:
        lines += [
            f"  %check{number} = getelementptr i8, ptr %failed.checks, i64 {checks}",
            f"  %d{number} = getelementptr ptr, ptr {table}, i64 {places}",
            f"  store ptr %check{number}, ptr %d{number}",
        ]
    if isinstance(shape.extent, Sym) or isinstance(shape.points, Sym):
        return [*lines, *_measured_launch(m, number, launch, function, shape)]
    work = cycles(kernel, m.target)
    most = min(shape.extent, work * 2 // PARALLEL_CYCLES, 1 << 16)
    if most < 2:
        lines.append(f"  call void @{function}(ptr {table}, i64 0, i64 {shape.extent})")
    else:
        lines.append(f"  call void @fs.parallel(ptr @{function}, ptr {table}, i64 {shape.extent}, i32 {most})")
    return lines
