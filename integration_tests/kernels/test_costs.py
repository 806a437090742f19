"""Instructions of every elementary function for a vector, bounded for all kinds of processors; what they call.

Compiled is for other processors than the one at hand, too: nothing is run. `python -m benchmarks instructions` prints
more of them, cycles by LLVM's models included.
"""

from __future__ import annotations

import pytest

from benchmarks.suites.kernels.assembly import ARM, PROCESSORS, Platform, assembly, counts, loop_of
from framesmith_backends.ir.ops import OPS
from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.libm import instead
from framesmith_backends.render.llvm.ops import functions

KINDS = {"f32": "float", "f64": "double"}
#: The most instructions, with AVX-512, AVX2 and NEON, when they were last counted.
COUNTED: dict[tuple[str, str], tuple[int, int, int]] = {
    ("f32", "exp"): (23, 31, 34),
    ("f32", "exp2"): (19, 26, 32),
    ("f32", "expm1"): (31, 35, 38),
    ("f32", "log"): (37, 39, 46),
    ("f32", "log2"): (42, 44, 50),
    ("f32", "log10"): (42, 44, 50),
    ("f32", "log1p"): (54, 58, 65),
    ("f32", "tanh"): (40, 44, 50),
    ("f32", "erf"): (42, 46, 60),
    ("f32", "sigmoid"): (38, 44, 46),
    ("f32", "rsqrt"): (6, 6, 7),
    ("f32", "sinh"): (37, 42, 47),
    ("f32", "cosh"): (25, 29, 33),
    ("f32", "fmod"): (23, 27, 33),
    ("f32", "floordiv"): (18, 21, 24),
    ("f32", "atanh"): (40, 42, 42),
    ("f32", "sin"): (37, 40, 43),
    ("f32", "cos"): (36, 38, 42),
    ("f32", "tan"): (40, 43, 47),
    ("f32", "asin"): (39, 47, 45),
    ("f32", "acos"): (44, 50, 53),
    ("f32", "atan"): (43, 49, 58),
    ("f32", "atan2"): (58, 64, 72),
    ("f32", "erfinv"): (65, 77, 95),
    ("f32", "logaddexp"): (45, 46, 67),
    ("f32", "logaddexp2"): (41, 42, 64),
    ("f32", "pow"): (161, 198, 204),
    ("f32", "hypot"): (25, 25, 25),
    ("f32", "asinh"): (75, 99, 91),
    ("f32", "acosh"): (66, 81, 82),
    ("f32", "lgamma"): (128, 135, 153),
    ("f32", "digamma"): (87, 88, 123),
    ("f32", "i0"): (101, 123, 145),
    ("f32", "i0e"): (99, 122, 139),
    ("f32", "i1"): (103, 129, 143),
    ("f32", "i1e"): (102, 130, 142),
    ("f32", "erfc"): (69, 74, 88),
    ("f32", "gelu"): (58, 56, 72),
    ("f32", "gelu_tanh"): (60, 68, 74),
    ("f32", "silu"): (31, 35, 39),
    ("f32", "mish"): (47, 54, 60),
    ("f32", "dgelu"): (55, 63, 78),
    ("f32", "dgelu_tanh"): (62, 71, 82),
    ("f32", "dsilu"): (43, 51, 58),
    ("f32", "dmish"): (63, 69, 84),
    ("f64", "exp"): (28, 36, 45),
    ("f64", "exp2"): (24, 32, 42),
    ("f64", "expm1"): (40, 45, 53),
    ("f64", "log"): (39, 41, 46),
    ("f64", "log2"): (49, 51, 58),
    ("f64", "log10"): (50, 52, 59),
    ("f64", "log1p"): (51, 53, 58),
    ("f64", "sin"): (45, 50, 56),
    ("f64", "cos"): (43, 48, 56),
    ("f64", "tanh"): (51, 55, 74),
    ("f64", "erf"): (67, 69, 110),
    ("f64", "sigmoid"): (43, 49, 56),
    ("f64", "pow"): (134, 170, 194),
}
#: By how much more a function may grow unnoticed; other versions of LLVM choose a little differently.
MARGIN = 1.06
#: Functions that are called for lanes which straight-line code does not serve, own ones or by name.
CALLED = {
    "sin": {"sinf", "sin"}, "cos": {"cosf", "cos"}, "tan": {"tanf"}, "fmod": {"fmodf"}, "floordiv": {"fmodf"},
}  # fmt: skip


def column(processor: Platform) -> int:
    return 2 if processor.triple == ARM else {64: 0, 32: 1}[processor.bytes]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("dtype", "name"), [(dtype, name) for dtype in KINDS for name in functions(dtype)])
def test_no_function_grows_unnoticed(dtype: str, name: str) -> None:
    """Nor calls the library but where it says so. A new function is counted first."""
    found = {
        processor.name: counts(assembly(functions(dtype)[name], OPS[name].arity, KINDS[dtype], processor))
        for processor in PROCESSORS.values()
    }
    bounds = {one.name: int(COUNTED[dtype, name][column(one)] * MARGIN) + 1 for one in PROCESSORS.values()}
    assert {one: counted.instructions for one, counted in found.items() if counted.instructions > bounds[one]} == {}
    called = {call for counted in found.values() for call in counted.calls if not call.startswith("fs.")}
    assert called <= CALLED.get(name, set())


def test_a_loop_is_found_and_its_kinds_are_counted() -> None:
    text = assembly(lambda b, x: b.div(b.intrinsic("sqrt", x), 3.0), 1, "float", PROCESSORS["haswell"])
    counted = counts(text)
    assert (counted.divisions, counted.roots, counted.conversions, counted.calls) == (1, 1, 0, ())
    assert counted.instructions < 10
    assert counts(assembly(lambda b, x: b.binary("frem", x, 3.0), 1, "float", PROCESSORS["znver4"])).calls == ("fmodf",)


def test_all_are_counted() -> None:
    assert set(COUNTED) == {(dtype, name) for dtype in KINDS for name in functions(dtype)}


@pytest.mark.parametrize("name", ["haswell", "znver2", "znver4", "neoverse-n1"])
def test_conditions_of_several_registers_meet_in_one(name: str) -> None:
    def function(b: Builder, x: Value) -> Value:
        wide = b.join([x, b.add(x, 1.0), b.add(x, 2.0), b.add(x, 3.0)])
        found = instead(b, b.compare("ogt", wide, 3.0), wide, lambda: b.neg(wide))
        return b.pick(found, range(x.lanes))

    names = [line.split()[0] for line in loop_of(assembly(function, 1, "float", PROCESSORS[name]))]
    assert not any("pack" in one or one.startswith("vextract") for one in names), names
