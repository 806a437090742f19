"""Modified Bessel functions of float32 of orders 0 and 1, computed in double precision and rounded once at the end.

Polynomials are those of Note [Fits] in `gamma`. Those for small arguments are of the function itself, those for
large ones of what is left of it beside e**t / sqrt(t). tests/render/llvm/test_special.py checks the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import INFINITY, LOG2E
from framesmith_backends.render.llvm.math.float64 import LN2, in_parts, narrowed, widened
from framesmith_backends.render.llvm.math.powers import times_power, whole_part

# Where the large arguments begin.
FAR = 8.0
# Beyond this, e**t / sqrt(t) is infinite in float32 whatever t in the root is.
END = 150.0
# I0(t), and I1(t) / t, in t**2.
I0_NEAR = (
    1.0000000002832004, 0.24999999796412994, 0.015625002162121858, 0.00043402696233182724, 6.781830603009242e-06,
    6.78023576099373e-08, 4.717996249425546e-10, 2.3721449914827455e-12, 1.0069464684451926e-14,
    1.9914231514027236e-17, 1.3566078698578613e-19,
)  # fmt: skip
I1_NEAR = (
    0.49999999896426894, 0.06250000521567012, 0.0026041626762901625, 5.425457691270707e-05, 6.780215589990516e-07,
    5.662108611407052e-09, 3.318274262381799e-11, 1.617839087876264e-13, 3.5043954414463794e-16,
    2.7505068091777712e-18,
)  # fmt: skip
# sqrt(t) * e**-t times the function, in 1 / t.
I0_FAR = (
    0.3989422808949194, 0.049867418757505444, 0.028094832137489246, 0.02725054542284041, 0.08513028069182933,
    -0.30565654290170186, 1.8277406670472534,
)  # fmt: skip
I1_FAR = (
    0.39894227982392444, -0.1496029308479494, -0.046801850177836196, -0.03865879441025041, -0.1034088747935704,
    0.33764982124905024, -2.076151571738762,
)  # fmt: skip
# e**r for |r| <= ln(2)/2.
EXP = (
    0.9999999999616458, 1.0000000002430933, 0.500000010462205, 0.16666665126026414, 0.04166622519900657,
    0.008333561071562974, 0.001394819724359323, 0.00019775203095273873,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """Whether the function is odd, and its polynomials."""

    odd: bool
    near: tuple[float, ...]
    far: tuple[float, ...]


ORDERS = (Order(False, I0_NEAR, I0_FAR), Order(True, I1_NEAR, I1_FAR))


def _power(b: Builder, y: Value) -> Value:
    """e**y, for a y where that is an ordinary number."""
    n, t = whole_part(b, y, LOG2E)
    return times_power(b, b.polynomial(b.fma(n, -LN2[0], y), EXP), t)


def _bessel(order: Order, scaled: bool) -> Callable[[Builder, Value], Value]:
    def function(b: Builder, x: Value) -> Value:
        size = b.intrinsic("fabs", x)
        t = widened(b, size)
        near = b.polynomial(b.mul(t, t), order.near)
        if order.odd:
            near = b.mul(near, t)
        r = b.div(b.number(1.0, t), t)
        far = b.mul(b.polynomial(r, order.far), b.intrinsic("sqrt", r))
        is_near = b.compare("olt", t, FAR)
        if scaled:
            near = b.mul(near, _power(b, b.neg(b.select(is_near, t, b.number(FAR, t)))))
        else:
            end = b.number(END, t)
            far = b.mul(far, _power(b, b.select(b.compare("ogt", t, end), end, t)))
        result = narrowed(b, b.select(is_near, near, far))
        if not scaled:
            # As eager's quotient of e**t and sqrt(t).
            result = b.select(b.compare("oeq", size, INFINITY), b.number(math.nan, x), result)
        return b.select(b.compare("olt", x, 0.0), b.neg(result), result) if order.odd else result

    return in_parts(function)


i0, i0e = _bessel(ORDERS[0], False), _bessel(ORDERS[0], True)
i1, i1e = _bessel(ORDERS[1], False), _bessel(ORDERS[1], True)
