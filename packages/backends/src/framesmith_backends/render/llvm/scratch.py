"""Scratch memory of threads, pooled between calls; all of a module's blocks have one size."""

from __future__ import annotations

#: The most blocks in the pool, one for each thread at work.
POOL = 256
#: Text of `ptr fs.take(i64 size)`, whose result may be null, and `void fs.give(ptr)`.
SCRATCH = f"""declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
@fs.pool = internal global [{POOL} x ptr] zeroinitializer

define internal ptr @fs.take(i64 %size) #0 {{
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
  %more = icmp ult i64 %next, {POOL}
  br i1 %more, label %loop, label %fresh
fresh:
  %new = call ptr @aligned_alloc(i64 4096, i64 %size)
  ret ptr %new
}}

define internal void @fs.give(ptr %buffer) #0 {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %taken ]
  %slot = getelementptr ptr, ptr @fs.pool, i64 %k
  %pair = cmpxchg ptr %slot, ptr null, ptr %buffer acq_rel monotonic, align 8
  %stored = extractvalue {{ ptr, i1 }} %pair, 1
  br i1 %stored, label %done, label %taken
taken:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {POOL}
  br i1 %more, label %loop, label %full
full:
  call void @free(ptr %buffer)
  br label %done
done:
  ret void
}}"""
