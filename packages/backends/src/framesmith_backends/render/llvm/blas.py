"""Matmuls as calls of the Fortran `sgemm` in torch's own library, which takes everything by address.

A row-major matrix is BLAS's column-major transpose, so BLAS computes the transposed matmul of swapped operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from framesmith_backends.ir.matmul import LARGEST, Matmul
from framesmith_backends.ir.symbolic.size import Size, Sym, Symbol
from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.loops.sizes import emit_size

_FLOAT_BYTES = 4

#: BLAS takes 32 bits, and by address.
_COUNTS = "\n".join(
    f"  %{name}.32 = trunc i64 %{name} to i32\n"
    f"  %{name}.at = getelementptr i32, ptr %counts, i64 {at}\n"
    f"  store i32 %{name}.32, ptr %{name}.at"
    for at, name in enumerate(("m", "n", "k", "a.leading", "b.leading"))
)

#: Declarations that modules with matmuls need.
BLAS = (
    "declare void @sgemm_(ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr)",
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    '@fs.plain = private constant [2 x i8] c"N\\00"',
    '@fs.transposed = private constant [2 x i8] c"T\\00"',
    "@fs.f32.0 = private constant float 0.0",
    "@fs.f32.1 = private constant float 1.0",
    "@PyExc_OverflowError = external global ptr",
    "@PyExc_RuntimeError = external global ptr",
    '@fs.large = private constant [57 x i8] c"a matrix has more rows or columns than BLAS counts, 2^31\\00"',
    "declare ptr @fs_context()",
    "declare i32 @fs_float32_precision(ptr, i32, i32)",
    "declare i32 @aoti_torch_create_tensor_from_blob(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr)",
    "declare i32 @aoti_torch_delete_tensor_object(ptr)",
    "declare i32 @aoti_torch_cpu_mm_out(ptr, ptr, ptr)",
    "declare i32 @aoti_torch_cpu_addmm_out(ptr, ptr, ptr, ptr, double, double)",
    "declare ptr @torch_exception_get_what_without_backtrace()",
    # Whether matmuls of float32 matrices are computed in float32: torch may be set to round their elements.
    # at::Float32Backend::MKLDNN is 2, at::Float32Op::MATMUL 3; at::Float32Precision::NONE and IEEE are below 2.
    """define internal i1 @fs.exact() {
  %context = call ptr @fs_context()
  %precision = call i32 @fs_float32_precision(ptr %context, i32 2, i32 3)
  %exact = icmp ult i32 %precision, 2
  ret i1 %exact
}""",
    # The row in each of the rows.
    """define internal void @fs.rows(ptr %to, ptr %row, i64 %rows, i64 %bytes) {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %k, %bytes
  %place = getelementptr i8, ptr %to, i64 %at
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %row, i64 %bytes, i1 false)
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %rows
  br i1 %more, label %loop, label %done
done:
  ret void
}""",
    # A tensor of two dimensions on memory that it does not own.
    """define internal i32 @fs.matrix(ptr %data, i64 %rows, i64 %columns, i64 %down, i64 %right, ptr %handle) {
  %sizes = alloca [2 x i64]
  %strides = alloca [2 x i64]
  store i64 %rows, ptr %sizes
  %s1 = getelementptr i64, ptr %sizes, i64 1
  store i64 %columns, ptr %s1
  store i64 %down, ptr %strides
  %t1 = getelementptr i64, ptr %strides, i64 1
  store i64 %right, ptr %t1
  %e = call i32 @aoti_torch_create_tensor_from_blob(ptr %data, i64 2, ptr %sizes, ptr %strides, i64 0, i32 6, i32 0, \
i32 0, ptr %handle)
  ret i32 %e
}""",
    # The matmul by ATen: nonzero where it failed.
    """define internal i32 @fs.by.aten(ptr %c, ptr %a, ptr %b, i64 %m, i64 %n, i64 %k, i64 %a0, i64 %a1, i64 %b0, \
i64 %b1, i1 %biased) {
  %cs = alloca ptr
  %as = alloca ptr
  %bs = alloca ptr
  %e0 = call i32 @fs.matrix(ptr %c, i64 %m, i64 %n, i64 %n, i64 1, ptr %cs)
  %e1 = call i32 @fs.matrix(ptr %a, i64 %m, i64 %k, i64 %a0, i64 %a1, ptr %as)
  %e2 = call i32 @fs.matrix(ptr %b, i64 %k, i64 %n, i64 %b0, i64 %b1, ptr %bs)
  %some = or i32 %e0, %e1
  %any = or i32 %some, %e2
  %none = icmp ne i32 %any, 0
  br i1 %none, label %failed, label %made
failed:
  ret i32 %any
made:
  %ch = load ptr, ptr %cs
  %ah = load ptr, ptr %as
  %bh = load ptr, ptr %bs
  br i1 %biased, label %sum, label %plain
sum:
  %e3 = call i32 @aoti_torch_cpu_addmm_out(ptr %ch, ptr %ch, ptr %ah, ptr %bh, double 1.0, double 1.0)
  br label %done
plain:
  %e4 = call i32 @aoti_torch_cpu_mm_out(ptr %ch, ptr %ah, ptr %bh)
  br label %done
done:
  %e = phi i32 [ %e3, %sum ], [ %e4, %plain ]
  %d0 = call i32 @aoti_torch_delete_tensor_object(ptr %ch)
  %d1 = call i32 @aoti_torch_delete_tensor_object(ptr %ah)
  %d2 = call i32 @aoti_torch_delete_tensor_object(ptr %bh)
  ret i32 %e
}""",
    # One matmul, with the row in each of the result's rows first if there is one; %failure is set where ATen fails.
    # One function for all: a branch on %exact for each matmul in the entry took LLVM half of its time.
    """define internal void @fs.matmul(i1 %exact, ptr %failure, ptr %c, ptr %a, ptr %b, ptr %row, i64 %m, \
i64 %n, i64 %k, i64 %a.leading, i1 %a.transposed, i64 %b.leading, i1 %b.transposed) {
  %counts = alloca [5 x i32]
  %biased = icmp ne ptr %row, null
  br i1 %biased, label %add, label %choose
add:
  %bytes = mul i64 %n, 4
  call void @fs.rows(ptr %c, ptr %row, i64 %m, i64 %bytes)
  br label %choose
choose:
  br i1 %exact, label %blas, label %aten
blas:
COUNTS
  %a.letter = select i1 %a.transposed, ptr @fs.transposed, ptr @fs.plain
  %b.letter = select i1 %b.transposed, ptr @fs.transposed, ptr @fs.plain
  %beta = select i1 %biased, ptr @fs.f32.1, ptr @fs.f32.0
  call void @sgemm_(ptr %b.letter, ptr %a.letter, ptr %n.at, ptr %m.at, ptr %k.at, ptr @fs.f32.1, \
ptr %b, ptr %b.leading.at, ptr %a, ptr %a.leading.at, ptr %beta, ptr %c, ptr %n.at)
  ret void
aten:
  %a.down = select i1 %a.transposed, i64 1, i64 %a.leading
  %a.right = select i1 %a.transposed, i64 %a.leading, i64 1
  %b.down = select i1 %b.transposed, i64 1, i64 %b.leading
  %b.right = select i1 %b.transposed, i64 %b.leading, i64 1
  %error = call i32 @fs.by.aten(ptr %c, ptr %a, ptr %b, i64 %m, i64 %n, i64 %k, i64 %a.down, i64 %a.right, \
i64 %b.down, i64 %b.right, i1 %biased)
  %before = load i32, ptr %failure
  %both = or i32 %before, %error
  store i32 %both, ptr %failure
  ret void
}""".replace("COUNTS", _COUNTS),
)

#: The beginning of an entry with matmuls: whether BLAS may compute them, and that ATen has not failed.
MATMULS_BEGIN = (
    "%threads = call i32 @fs_num_threads()",  # passed to OpenMP, and so BLAS, on a thread's first use
    "%exact = call i1 @fs.exact()",
    "store i32 0, ptr %failure",
)

#: The end, before it returns.
MATMULS_END = (
    "%failures = load i32, ptr %failure",
    "%none.failed = icmp eq i32 %failures, 0",
    "br i1 %none.failed, label %well, label %failed.matmuls",
    "failed.matmuls:",
    "%what = call ptr @torch_exception_get_what_without_backtrace()",
    "%runtime.error = load ptr, ptr @PyExc_RuntimeError",
    "call void @PyErr_SetString(ptr %runtime.error, ptr %what)",
    "ret ptr null",
    "well:",
)


def emit_matmul(b: Builder, matmul: Matmul, buffers: Mapping[str, Value], known: dict[Symbol, Value]) -> None:
    """The matmul on the buffers' addresses, by BLAS if `%exact`, else by ATen, whose errors are in `%failure`."""

    def address(buffer: str, offset: Size) -> str:
        if offset == 0:
            return buffers[buffer].typed
        moved = emit_size(b, offset * _FLOAT_BYTES, known)
        return b.emit(f"getelementptr i8, ptr {buffers[buffer].text}, {moved.typed}", "ptr").typed

    row = "ptr null" if matmul.bias is None else address(matmul.bias.source, matmul.bias.offset)
    operands = [address(one.buffer, one.offset) for one in (matmul.a, matmul.b)]
    counts = [emit_size(b, size, known).typed for size in (matmul.m, matmul.n, matmul.k)]
    layouts = [
        text
        for one in (matmul.a, matmul.b)
        for text in (emit_size(b, one.leading, known).typed, f"i1 {str(one.transposed).lower()}")
    ]
    given = ["i1 %exact", "ptr %failure", buffers[matmul.result].typed, *operands, row, *counts, *layouts]
    b.line(f"call void @fs.matmul({', '.join(given)})")


def emit_too_large(b: Builder, matmuls: Iterable[tuple[Matmul, dict[Symbol, Value]]]) -> Value | None:
    """Whether a size is more than BLAS counts; None where no size changes."""
    found: Value | None = None
    for matmul, known in matmuls:
        for size in (matmul.m, matmul.n, matmul.k, matmul.a.leading, matmul.b.leading):
            if isinstance(size, Sym):
                large = b.compare("sgt", emit_size(b, size, known), LARGEST)
                found = large if found is None else b.binary("or", found, large)
    return found
