"""A module of kernels and the native entries that launch them, and matmuls between them.

An entry is a CPython function in the vectorcall style of METH_FASTCALL: it takes the tensors of one launch
list, reads their data pointers through torch's stable C shim, and runs the kernels in order, those with
enough work on the process's own OpenMP threads. The interpreter lock is released for long lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framesmith_backends.ir.canonical import kernel_form
from framesmith_backends.ir.expr import Number, cost
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import Item, Matmul, failures_of
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic.size import Sym, Symbol, hint
from framesmith_backends.render.llvm.blas import BLAS, MATMULS_BEGIN, MATMULS_END, emit_matmul, emit_too_large
from framesmith_backends.render.llvm.builder import Builder, Value, constant
from framesmith_backends.render.llvm.loops.kernel import Shape, render_kernel
from framesmith_backends.render.llvm.loops.sizes import emit_size
from framesmith_backends.render.llvm.runtime import FAILURES, INNER, NUMBERS, RUNTIME, attributes
from framesmith_backends.render.llvm.writer import Writer
from framesmith_backends.target import Processor

# Below this many estimated cycles a kernel is not worth waking threads for; each thread gets at least half.
PARALLEL_CYCLES = 60_000
# Above this many the interpreter lock is released.
RELEASE_CYCLES = 100_000
# The end of an entry that returns None.
RETURN_NONE = ("call void @Py_IncRef(ptr @_Py_NoneStruct)", "ret ptr @_Py_NoneStruct")
# So many launches are one function: LLVM's time for it grows with the square of its calls, its stack with their number.
PART = 64


@dataclass(frozen=True, slots=True)
class NativeLaunch:
    """One kernel or matmul on the entry's buffers, and on its numbers, at these positions."""

    item: Item
    arguments: tuple[int, ...]
    numbers: tuple[int, ...] = ()


#: Gives the text of an item's functions, the first of the given name, its extent, and the declarations it needs.
Render = Callable[[Any, str, Processor, bool], tuple[str, Shape, dict[str, None]]]


@dataclass(slots=True)
class KernelModule:
    """The text being gathered: distinct kernel functions by body, declarations, entries.

    `rendered` has the functions' names, and the extents, by the kernels' canonical structure. `renderers` are those of
    items that are neither kernels nor matmuls, by their types.
    """

    target: Processor
    bytes_to_handle: int
    tensor_types: tuple[str, ...]
    strict: bool = False
    renderers: Mapping[type, Render] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    rendered: dict[Hashable, tuple[str, Shape]] = field(default_factory=dict)
    declarations: dict[str, None] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def text(self) -> str:
        metadata = '!0 = !{!"branch_weights", i32 1, i32 100000}\n!1 = !{}'
        parts = [*self.declarations, RUNTIME, _pointers(self), *self.functions.values(), *self.entries]
        return "\n\n".join([*parts, attributes(self.target), metadata])


def _pointers(m: KernelModule) -> str:
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


def add_kernel(m: KernelModule, kernel: Item) -> tuple[str, Shape]:
    """The name of the function of a kernel, or of an item with a renderer, and its own extents.

    Kernels whose functions have the same text share one: they may differ in names, and in the extent of the
    parallel loop, which is an argument.
    """
    structure = kernel_form(kernel) if isinstance(kernel, Kernel) else None
    if structure is not None and structure in m.rendered:
        return m.rendered[structure]
    render: Render = m.renderers.get(type(kernel), render_kernel)
    text, shape, declarations = render(kernel, "KERNEL", m.target, m.strict)
    if text not in m.functions:
        m.functions[text] = text.replace("@KERNEL", f"@k{len(m.functions)}")
        m.declarations.update(declarations)
    found = m.functions[text].split("@", 1)[1].split("(", 1)[0], shape
    if structure is not None:
        m.rendered[structure] = found
    return found


def add_entry(
    m: KernelModule,
    name: str,
    count: int,
    launches: Sequence[NativeLaunch],
    numbers: Sequence[Symbol | Number] = (),
    inner: Sequence[int] = (),
) -> None:
    """An entry taking `count` tensors, then numbers, that runs the launches in order.

    The buffers after the tensors lie in the last of these, `inner` bytes from its start.
    """
    has_matmuls = any(isinstance(launch.item, Matmul) for launch in launches)
    failures = [failure for launch in launches for failure in failures_of(launch.item)]
    w = Writer(entry=[f"%table = alloca [{count + len(inner)} x ptr], align 16"])
    w.out += inner_lines(m, name, count, inner)
    given = [number_value(k, one).typed for k, one in enumerate(numbers)] + ["ptr %table"]
    if has_matmuls:
        m.declarations.update(dict.fromkeys(BLAS))
        w.entry.append("%failure = alloca i32")
        w.out += MATMULS_BEGIN
        given += ["i1 %exact", "ptr %failure"]
    if failures:
        w.entry.append(f"%failed.checks = alloca [{len(failures)} x i8]")
        w.line(f"call void @llvm.memset.p0.i64(ptr %failed.checks, i8 0, i64 {len(failures)}, i1 false)")
        given.append("ptr %failed.checks")
    _write_until_failed(m, w, name, launches, ", ".join(given))
    counts = _counts_lines(launches)
    block = "counted" if counts else "begin" if numbers else "run"
    lines = [*w.entry, *begin_lines(m, count, numbers), *counts, *_unlocked(m, launches, w.out, block)]
    if has_matmuls:
        lines += MATMULS_END
    lines += [*_failures_lines(m, name, failures), *RETURN_NONE]
    m.entries.append(function_text(f"define ptr @{name}(ptr %self, ptr %args, i64 %n)", lines))


def function_text(head: str, lines: Sequence[object]) -> str:
    """A function whose lines are indented, but for labels."""
    return "\n".join([f"{head} {{", "entry:", *(f"{'' if str(x).endswith(':') else '  '}{x}" for x in lines), "}"])


def begin_lines(m: KernelModule, count: int, numbers: Sequence[Symbol | Number]) -> list[str]:
    """Fill the table with the tensors' data pointers, and read the numbers behind them, or return with an error."""
    lines = [
        f"%failed = call i32 @fs.pointers(ptr %args, i64 {count}, ptr %table)",
        "%bad = icmp ne i32 %failed, 0",
        "br i1 %bad, label %error, label %run",
        "error:",
        "ret ptr null",
        "run:",
    ]
    if not numbers:
        return lines
    m.declarations.update(dict.fromkeys(NUMBERS))
    for k, one in enumerate(numbers):
        function = "@PyLong_AsLongLong" if isinstance(one, Symbol) else "@PyFloat_AsDouble"
        lines += [
            f"%where{k} = getelementptr ptr, ptr %args, i64 {count + k}",
            f"%object{k} = load ptr, ptr %where{k}",
            f"%number{k} = call {number_value(k, one).kind} {function}(ptr %object{k})",
        ]
    # A number may be too large for 64 bits.
    return [
        *lines,
        "%raised = call ptr @PyErr_Occurred()",
        "%fine = icmp eq ptr %raised, null",
        "br i1 %fine, label %begin, label %error",
        "begin:",
    ]


def number_value(k: int, number: Symbol | Number) -> Value:
    """The k-th number of an entry."""
    return Value(f"%number{k}", "i64" if isinstance(number, Symbol) else "double")


def _failures_lines(m: KernelModule, name: str, failures: Sequence[Failure]) -> list[str]:
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
        f"%raises = call i1 @fs.raise({given})",
        "br i1 %raises, label %check.failed, label %checked", "check.failed:", "ret ptr null", "checked:",
    ]  # fmt: skip


def _write_until_failed(m: KernelModule, w: Writer, name: str, launches: Sequence[NativeLaunch], given: str) -> None:
    """The launches in order; those behind the last one with checks run where none of them has failed."""
    first = max((at + 1 for at, launch in enumerate(launches) if failures_of(launch.item)), default=0)
    _write_launches(m, w, name, launches[:first], given)
    if first in (0, len(launches)):
        _write_launches(m, w, name, launches[first:], given)
        return
    count = sum(len(failures_of(launch.item)) for launch in launches)
    stops = w.emit(f"call i1 @fs.failed(ptr %failed.checks, i64 {count})", "i1")
    w.out += [f"br i1 {stops.text}, label %stopped, label %unchecked", "unchecked:"]
    _write_launches(m, w, f"{name}.unchecked", launches[first:], given)
    w.out += ["br label %stopped", "stopped:"]


def _write_launches(
    m: KernelModule, w: Writer, name: str, launches: Sequence[NativeLaunch], given: str, checks: int = 0
) -> None:
    """The launches in order, behind so many checks; many are in functions of their own, which take `given`."""
    if len(launches) <= PART:
        for launch in launches:
            _write_launch(m, w, launch, checks)
            checks += len(failures_of(launch.item))
        return
    for start in range(0, len(launches), PART):
        part, inside, some = f"{name}.part{start // PART}", Writer(), launches[start : start + PART]
        _write_launches(m, inside, part, some, given, checks)
        checks += sum(len(failures_of(one.item)) for one in some)
        lines = [*inside.entry, *inside.out, "ret void"]
        m.entries.append(function_text(f"define internal void @{part}({given})", lines))
        w.line(f"call void @{part}({given})")


def _counts_lines(launches: Sequence[NativeLaunch]) -> list[object]:
    """An error where a matmul has a size that BLAS cannot count."""
    b = Builder(prefix="c")
    large = emit_too_large(b, ((one.item, _known(one)) for one in launches if isinstance(one.item, Matmul)))
    if large is None:
        return []
    return [
        *b.out, f"br i1 {large.text}, label %large, label %counted",
        "large:", "%overflow = load ptr, ptr @PyExc_OverflowError",
        "call void @PyErr_SetString(ptr %overflow, ptr @fs.large)", "ret ptr null",
        "counted:",
    ]  # fmt: skip


def inner_lines(m: KernelModule, name: str, count: int, inner: Sequence[int]) -> list[str]:
    """Fill the table behind the first `count` entries."""
    if not inner:
        return []
    m.declarations[INNER] = None
    offsets = f"[{len(inner)} x i64]"
    m.declarations[f"@{name}.inner = private constant {offsets} [{', '.join(f'i64 {at}' for at in inner)}]"] = None
    return [
        f"%arena.slot = getelementptr ptr, ptr %table, i64 {count - 1}",
        f"call void @fs.inner(ptr %arena.slot, ptr @{name}.inner, i64 {len(inner)})",
    ]


def _unlocked(m: KernelModule, launches: Sequence[NativeLaunch], body: list[object], block: str) -> list[object]:
    """The launches, with the interpreter lock released where they take long; written in the block of that name."""
    save, restore = "call ptr @PyEval_SaveThread()", "call void @PyEval_RestoreThread(ptr"
    points = [one.item.points for one in launches]
    if not any(isinstance(n, Sym) for n in points):
        total = sum(cycles(one.item, m.target) for one in launches)
        return body if total <= RELEASE_CYCLES else [f"%state = {save}", *body, f"{restore} %state)"]
    b = Builder(prefix="w")
    work = constant(0, "i64")
    for launch, count in zip(launches, points, strict=True):
        work = b.add(work, b.mul(emit_size(b, count, _known(launch)), _point_cycles(launch.item)))
    long = b.compare("ugt", work, RELEASE_CYCLES * m.target.float_lanes).text
    return [
        *b.out, f"br i1 {long}, label %release, label %start", "release:",
        f"%saved = {save}", "br label %start",
        "start:", f"%state = phi ptr [ null, %{block} ], [ %saved, %release ]",
        *body, f"br i1 {long}, label %take, label %done",
        "take:", f"{restore} %state)", "br label %done", "done:",
    ]  # fmt: skip


def _known(launch: NativeLaunch) -> dict[Symbol, Value]:
    """The entry's values of the symbols of a launch."""
    numbers = zip(launch.item.numbers, launch.numbers, strict=True)
    return {symbol: number_value(at, symbol) for symbol, at in numbers if isinstance(symbol, Symbol)}


def _write_launch(m: KernelModule, w: Writer, launch: NativeLaunch, checks: int) -> None:
    """Read the item's buffers, and run it; a kernel takes a table of buffers, numbers, and the first of its checks."""
    known, item = _known(launch), launch.item
    table = Value("%table", "ptr")
    pointers = [w.read(w.at(table, at, "ptr"), "ptr") for at in launch.arguments]
    if isinstance(item, Matmul):
        names = [param.name for param in item.params]
        emit_matmul(w, item, dict(zip(names, pointers, strict=True)), known)
        return
    function, shape = add_kernel(m, item)
    can_fail = bool(failures_of(item))
    values = [*pointers, *(number_value(at, n) for at, n in zip(launch.numbers, item.numbers, strict=True))]
    own = Value(f"%t{len(w.entry)}", "ptr")
    w.entry.append(f"{own.text} = alloca [{len(values) + can_fail} x ptr], align 16")
    if item.points == 0:
        return
    for k, value in enumerate(values):
        w.store(value, w.at(own, k, "ptr"), 0)
    if can_fail:
        w.store(w.at(Value("%failed.checks", "ptr"), checks, "i8"), w.at(own, len(values), "ptr"), 0)
    extent, points = emit_size(w, shape.extent, known), emit_size(w, shape.points, known)
    # As many threads as have enough to do each.
    if isinstance(shape.extent, int) and isinstance(shape.points, int):
        most = min(shape.extent, cycles(item, m.target) * 2 // PARALLEL_CYCLES, 1 << 16)
        if most < 2:
            w.line(f"call void @{function}({own.typed}, i64 0, {extent.typed})")
            return
        threads = constant(most, "i32")
    else:
        count = w.binary("udiv", w.mul(points, 2 * _point_cycles(item)), PARALLEL_CYCLES * m.target.float_lanes)
        threads = w.convert("trunc", w.least(w.least(count, extent), 1 << 16), "i32")
    w.line(f"call void @fs.parallel(ptr @{function}, {own.typed}, {extent.typed}, {threads.typed})")
