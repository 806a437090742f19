"""LLVM text that modules share: declarations of Python, OpenMP and torch, functions that entries call, and `#0`."""

from __future__ import annotations

from framesmith_backends.target import Processor

#: Declarations for entries that take numbers.
NUMBERS = (
    "declare i64 @PyLong_AsLongLong(ptr)", "declare double @PyFloat_AsDouble(ptr)", "declare ptr @PyErr_Occurred()"
)  # fmt: skip

#: For entries with arenas: store an address into the arena for each of the slots after its own, by their offsets.
INNER = """define internal void @fs.inner(ptr %slot, ptr %offsets, i64 %count) {
entry:
  %arena = load ptr, ptr %slot
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %offsets, i64 %k
  %offset = load i64, ptr %at
  %address = getelementptr i8, ptr %arena, i64 %offset
  %next = add i64 %k, 1
  %place = getelementptr ptr, ptr %slot, i64 %next
  store ptr %address, ptr %place
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}"""

#: For entries with checks: raise the exception of the first that failed, and return whether there was one; the latter.
FAILURES = (
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    """define internal i1 @fs.raise(ptr %words, ptr %exceptions, ptr %messages, i64 %count) {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %at = getelementptr i8, ptr %words, i64 %k
  %word = load i8, ptr %at
  %failed = icmp ne i8 %word, 0
  br i1 %failed, label %raise, label %more
more:
  %next = add i64 %k, 1
  %some = icmp ult i64 %next, %count
  br i1 %some, label %loop, label %none
none:
  ret i1 false
raise:
  %exception.at = getelementptr ptr, ptr %exceptions, i64 %k
  %exception.place = load ptr, ptr %exception.at
  %exception = load ptr, ptr %exception.place
  %message.at = getelementptr ptr, ptr %messages, i64 %k
  %message = load ptr, ptr %message.at
  call void @PyErr_SetString(ptr %exception, ptr %message)
  ret i1 true
}""",
    """define internal i1 @fs.failed(ptr %words, i64 %count) {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %more ]
  %at = getelementptr i8, ptr %words, i64 %k
  %word = load i8, ptr %at
  %failed = icmp ne i8 %word, 0
  br i1 %failed, label %done, label %more
more:
  %next = add i64 %k, 1
  %some = icmp ult i64 %next, %count
  br i1 %some, label %loop, label %done
done:
  ret i1 %failed
}""",
)

RUNTIME = """declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @omp_in_parallel()
declare i32 @fs_num_threads()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_SetString(ptr, ptr)
declare void @Py_IncRef(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
@_Py_NoneStruct = external global i8
@PyExc_TypeError = external global ptr
@fs.message = private constant [59 x i8] c"a compiled graph's argument is not a dense torch.Tensor   \\00"

define internal void @fs.worker(ptr %job) {
  %rank32 = call i32 @omp_get_thread_num()
  %count32 = call i32 @omp_get_num_threads()
  %rank = zext i32 %rank32 to i64
  %count = zext i32 %count32 to i64
  %fn = load ptr, ptr %job
  %s1 = getelementptr ptr, ptr %job, i64 1
  %buffers = load ptr, ptr %s1
  %s2 = getelementptr i64, ptr %job, i64 2
  %extent = load i64, ptr %s2
  %lo = mul i64 %rank, %extent
  %begin = udiv i64 %lo, %count
  %hi = add i64 %lo, %extent
  %end = udiv i64 %hi, %count
  call void %fn(ptr %buffers, i64 %begin, i64 %end)
  ret void
}

define internal void @fs.parallel(ptr %fn, ptr %buffers, i64 %extent, i32 %most) {
entry:
  %job = alloca [3 x i64]
  %threads = call i32 @fs_num_threads()
  %fewer = icmp slt i32 %threads, %most
  %n = select i1 %fewer, i32 %threads, i32 %most
  %one = icmp slt i32 %n, 2
  br i1 %one, label %serial, label %ask
ask:
  %nested = call i32 @omp_in_parallel()
  %inside = icmp ne i32 %nested, 0
  br i1 %inside, label %serial, label %team
serial:
  call void %fn(ptr %buffers, i64 0, i64 %extent)
  ret void
team:
  store ptr %fn, ptr %job
  %s1 = getelementptr ptr, ptr %job, i64 1
  store ptr %buffers, ptr %s1
  %s2 = getelementptr i64, ptr %job, i64 2
  store i64 %extent, ptr %s2
  call void @GOMP_parallel(ptr @fs.worker, ptr %job, i32 %n, i32 0)
  ret void
}"""

#: The function that frees the scratch memory which a module's pool has, if it has one.
DRAIN = "fs.drain"

#: Scratch memory of threads, pooled between calls; all of a module's blocks have one size.
#: `ptr fs.take(i64 size)`, whose result may be null, and `void fs.give(ptr)`.
POOL = (
    "declare ptr @aligned_alloc(i64, i64)",
    "declare void @free(ptr)",
    """@fs.pool = internal global [256 x ptr] zeroinitializer

define internal ptr @fs.take(i64 %size) #0 {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %empty ]
  %slot = getelementptr ptr, ptr @fs.pool, i64 %k
  %there = load atomic ptr, ptr %slot monotonic, align 8
  %none = icmp eq ptr %there, null
  br i1 %none, label %empty, label %try
try:
  %old = atomicrmw xchg ptr %slot, ptr null acq_rel, align 8
  %got = icmp ne ptr %old, null
  br i1 %got, label %found, label %empty
found:
  ret ptr %old
empty:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 256
  br i1 %more, label %loop, label %fresh
fresh:
  %new = call ptr @aligned_alloc(i64 4096, i64 %size)
  ret ptr %new
}

define internal void @fs.give(ptr %buffer) #0 {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %taken ]
  %slot = getelementptr ptr, ptr @fs.pool, i64 %k
  %pair = cmpxchg ptr %slot, ptr null, ptr %buffer acq_rel monotonic, align 8
  %stored = extractvalue { ptr, i1 } %pair, 1
  br i1 %stored, label %done, label %taken
taken:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 256
  br i1 %more, label %loop, label %full
full:
  call void @free(ptr %buffer)
  br label %done
done:
  ret void
}""",
    f"""define void @{DRAIN}() {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %slot = getelementptr ptr, ptr @fs.pool, i64 %k
  %there = atomicrmw xchg ptr %slot, ptr null acq_rel, align 8
  call void @free(ptr %there)
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 256
  br i1 %more, label %loop, label %done
done:
  ret void
}}""",
)
SCRATCH = "\n".join(POOL)


def attributes(target: Processor) -> str:
    """`#0`: the processor that functions are compiled for."""
    width = target.bytes * 8
    return (
        f'attributes #0 = {{ nounwind "target-cpu"="{target.name}" "prefer-vector-width"="{width}" '
        f'"min-legal-vector-width"="{width}" "no-trapping-math"="true" }}'
    )
