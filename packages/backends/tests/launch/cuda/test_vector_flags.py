"""Promises about vectors in LLVM's code are taken back, and nothing else."""

from __future__ import annotations

import pytest

from framesmith_backends.launch.cuda.vector_flags import without_promises


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("%1 = shl nuw nsw <2 x i32> %0, <i32 31, i32 2>", "%1 = shl <2 x i32> %0, <i32 31, i32 2>"),
        ("%1 = add nsw <4 x i64> %0, %0", "%1 = add <4 x i64> %0, %0"),
        ("%1 = or disjoint <8 x i32> %0, %0, !dbg !7", "%1 = or <8 x i32> %0, %0, !dbg !7"),
        ("%1 = zext nneg <2 x i16> %0 to <2 x i32>", "%1 = zext <2 x i16> %0 to <2 x i32>"),
        ("%1 = sdiv exact <2 x i32> %0, %0", "%1 = sdiv <2 x i32> %0, %0"),
        ("%1 = shl nuw nsw i32 %0, 2", "%1 = shl nuw nsw i32 %0, 2"),
        ("%1 = fadd contract <2 x float> %0, %0", "%1 = fadd contract <2 x float> %0, %0"),
        ("%1 = getelementptr inbounds nuw i8, ptr %0, i64 4", "%1 = getelementptr inbounds nuw i8, ptr %0, i64 4"),
    ],
)
def test_promises_about_vectors_are_taken_back(given: str, wanted: str) -> None:
    assert without_promises(f"  {given}\n  ret void\n") == f"  {wanted}\n  ret void\n"
