"""gelu and its derivative of float32 by intervals, with AVX-512: polynomials whose coefficients are looked up.

With t = |x|, what x * Phi(x) lacks of x or of 0, and its derivative of 1 or of 0, are a smooth function of t times
exp(-t*t/2), Phi being the normal distribution. Where the result is kept, t is within [0, 15), or NaN. A lookup in a
register's 16 entries, or in two registers, takes as long as a sum: 18 multiplications and 8 lookups stand for 31
multiplications and a division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.math.elementary import LN2_HIGH, LN2_LOW, LOG2E, rounded
from framesmith_backends.render.llvm.math.powers import FLOAT, scalef, square

Intervals = tuple[tuple[float, ...], ...]

#: The lanes of a register: fewer are not computed here.
REGISTER_LANES = 16

# A row is an interval: its start, the value there, and a polynomial in the distance from there, which begins with its
# first power. The intervals of 1 + t have an eighth of a power of two each. Starts are near ends of intervals where the
# value is almost exactly a float.
# (1 - Phi(t)) * exp(t*t/2); the polynomials are to be multiplied by the value.
TAIL: Intervals = (
    (0.0, 0.5, -0.797883689, 0.499934256, -0.264387965, 0.109846786),
    (0.125048056, 0.453776777, -0.754110992, 0.452796102, -0.231201261, 0.0934575573),
    (0.250002325, 0.414031416, -0.713552654, 0.410759926, -0.202539384, 0.079614684),
    (0.375079095, 0.379584134, -0.675918758, 0.37320295, -0.177772075, 0.0680627152),
    (0.500206709, 0.34957251, -0.641021907, 0.339648932, -0.156318009, 0.0582362302),
    (0.625000238, 0.323356122, -0.608754575, 0.309738457, -0.137769192, 0.0498876721),
    (0.750147462, 0.30020684, -0.578743637, 0.282907188, -0.121657394, 0.0428787358),
    (0.875181675, 0.279742569, -0.550923109, 0.258903265, -0.107678778, 0.0369396918),
    (1.00012302, 0.261561394, -0.52510792, 0.237302482, -0.0945560336, 0.0288216285),
    (1.25033855, 0.230722919, -0.478756279, 0.200616494, -0.0749883428, 0.0217638947),
    (1.50006616, 0.205774695, -0.438665807, 0.170928583, -0.0600398257, 0.0166060943),
    (1.75009716, 0.185224399, -0.403733999, 0.146670863, -0.0484899357, 0.0127880713),
    (2.00083375, 0.168049708, -0.373119473, 0.126693636, -0.0394856632, 0.00993828196),
    (2.25037575, 0.15363194, -0.346364141, 0.110251665, -0.0324582532, 0.00780308479),
    (2.50083327, 0.141293332, -0.322670221, 0.096510008, -0.0268826857, 0.00618079118),
    (2.75007343, 0.130721837, -0.301767349, 0.08504498, -0.0224568658, 0.00493980292),
    (3.00063276, 0.121492185, -0.283050299, 0.0752579272, -0.0185685717, 0.00348207285),
    (3.50042558, 0.106333777, -0.251364768, 0.0600103997, -0.0134493541, 0.00234251167),
    (4.00004435, 0.0944096968, -0.225603625, 0.0487569496, -0.00998433121, 0.00161995355),
    (4.50081825, 0.0847892165, -0.204287142, 0.0402500033, -0.00757176755, 0.00114829512),
    (5.00052738, 0.07691174, -0.186486095, 0.0337218419, -0.0058586793, 0.000833201746),
    (5.50139904, 0.0703258291, -0.171370909, 0.0286005624, -0.0046097273, 0.000616474601),
    (6.00125313, 0.0647664517, -0.158452243, 0.0245371517, -0.00368516706, 0.000464657438),
    (6.50047207, 0.0600115024, -0.147291303, 0.0212635472, -0.00298782159, 0.000356217439),
    (7.00031471, 0.0558910631, -0.137537614, 0.0185670536, -0.0024038204, 0.000238917331),
    (8.0006237, 0.049118828, -0.121357895, 0.0145130586, -0.00167757703, 0.000152526743),
    (9.00133324, 0.0437924527, -0.108506985, 0.0116353482, -0.00121308153, 0.000101539998),
    (10.0016022, 0.0395004861, -0.098077625, 0.00952629093, -0.000903740933, 7.0053793e-05),
    (11.0010834, 0.0359714031, -0.0894561782, 0.00793780573, -0.000690354034, 4.97845394e-05),
    (12.0035629, 0.0330093019, -0.0821902081, 0.00670908764, -0.000538327207, 3.63037761e-05),
    (13.0004835, 0.0305082928, -0.0760356486, 0.00574752456, -0.000427972089, 2.70665478e-05),
    (14.0009251, 0.0283508059, -0.0707129464, 0.00497492962, -0.000345424429, 2.05749602e-05),
)
# (1 - Phi(t)) * exp(t*t/2) - t / sqrt(2 * pi), which has a root: where the intervals on both of its sides start.
SLOPE: Intervals = (
    (0.0, 0.5, -0.797884107, 0.249966279, -0.132182628, 0.0548770912),
    (0.12501438, 0.403914779, -0.741154194, 0.205479592, -0.104926258, 0.0424319543),
    (0.25004372, 0.314266175, -0.694361389, 0.170055866, -0.0838361233, 0.0328984931),
    (0.375086397, 0.229944438, -0.65550822, 0.141659185, -0.0674620494, 0.0257679317),
    (0.500083089, 0.150095925, -0.62305522, 0.118749775, -0.0546233542, 0.0202339627),
    (0.751791537, -6.93438551e-09, -0.572406173, 0.0847585052, -0.0364811569, 0.015650237),
    (0.751791537, -6.93438551e-09, -0.572406173, 0.0847546533, -0.0364987627, 0.0131482501),
    (0.875209272, -0.0694196671, -0.553054929, 0.0724238381, -0.0301226266, 0.010340903),
    (1.00009966, -0.137417436, -0.536293328, 0.0620754063, -0.0247638971, 0.00760307675),
    (1.25035596, -0.268098861, -0.509400785, 0.0462876, -0.0173127409, 0.00504547358),
    (1.50044703, -0.392851442, -0.489181846, 0.0351594575, -0.0123550408, 0.0034287991),
    (1.75010383, -0.512966514, -0.473723322, 0.0271672551, -0.00898428727, 0.00237454381),
    (2.00032353, -0.629931927, -0.461666644, 0.0213012844, -0.00664092368, 0.00167411694),
    (2.25000882, -0.743972182, -0.452167332, 0.0169441868, -0.00499169994, 0.0012053682),
    (2.50045443, -0.856226385, -0.444543779, 0.0136408359, -0.00380157144, 0.000877081475),
    (2.75004172, -0.966384828, -0.438390583, 0.0111178281, -0.00293766288, 0.000649629859),
    (3.00000238, -1.07531393, -0.433342278, 0.00914824475, -0.00225937599, 0.000425437),
    (3.50061846, -1.29021609, -0.425668389, 0.00638038525, -0.00143025047, 0.000249452074),
    (4.00152254, -1.50199831, -0.420227855, 0.00459906273, -0.000942116487, 0.000153366273),
    (4.50052023, -1.71065342, -0.416265666, 0.00341339759, -0.000642313738, 9.7562508e-05),
    (5.00019264, -1.91787171, -0.413286984, 0.00259402813, -0.000450599735, 6.40033395e-05),
    (5.50050354, -2.1240468, -0.410997689, 0.00201227306, -0.000324480032, 4.34961366e-05),
    (6.00153112, -2.32950091, -0.409203798, 0.00158910279, -0.00023901368, 3.04596724e-05),
    (6.50107765, -2.53354859, -0.407779902, 0.00127567374, -0.00017906737, 2.1196267e-05),
    (7.00068474, -2.73698092, -0.406628639, 0.00103760487, -0.000134374815, 1.33771264e-05),
    (8.00021744, -3.14250374, -0.404903829, 0.000713028887, -8.25163879e-05, 7.54367511e-06),
    (9.00085258, -3.54702592, -0.40369457, 0.000509683974, -5.3238422e-05, 4.49889831e-06),
    (10.000699, -3.9501977, -0.40281707, 0.000376372103, -3.56812379e-05, 2.75432831e-06),
    (11.0035763, -4.35382843, -0.402158707, 0.000285276532, -2.47035041e-05, 1.73660294e-06),
    (12.0021839, -4.75516558, -0.401655942, 0.000221585971, -1.78555529e-05, 1.23713573e-06),
    (13.0017624, -5.15644741, -0.401261538, 0.000175235633, -1.29555165e-05, 7.78329706e-07),
    (14.0035362, -5.5582571, -0.400946319, 0.000140997843, -9.835946e-06, 6.07226355e-07),
)

# exp(-r/2) - 1 over r, for |r| <= ln(2)/16.
POWER = (-0.5, 0.125004083, -0.0208337624)
# The power of two by which what is multiplied is larger; see `Bell`.
LARGER = 64
SIXTEENTHS = tuple(2.0 ** (k / 16) for k in range(16))
# Adding this rounds a float below 2**18 to a sixteenth; the sum's low bits are its sixteenths.
ROUNDING = 786432.0


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval that t lies in. What is looked up is so where it is needed: registers are few."""

    index: Value
    intervals: Intervals

    @classmethod
    def of(cls, b: Builder, t: Value, intervals: Intervals) -> Interval:
        return cls(b.binary("lshr", b.bits(b.add(t, 1.0), "i32"), 20), intervals)

    def entry(self, b: Builder, column: int) -> Value:
        # The index of the first interval, which begins at 1, ends in 24.
        return b.lookup(tuple(row[column] for row in self.intervals[8:] + self.intervals[:8]), self.index)

    def slope(self, b: Builder, t: Value) -> tuple[Value, Value]:
        """(polynomial without its value at the start, distance from there): these are to be multiplied."""
        distance = b.sub(t, self.entry(b, 0))
        result = self.entry(b, 5)
        for column in (4, 3, 2):
            result = b.fma(result, distance, self.entry(b, column))
        return result, distance


@dataclass(frozen=True, slots=True)
class Bell:
    """exp(-t*t/2) = high * (1 + rest) * 2**(n - 64); n - 64 is rounded down. `shifted` holds its sixteenths, less 64's.

    What is multiplied is 2**64 times as large: t may be small.
    """

    shifted: Value
    rest: Value

    def high(self, b: Builder) -> Value:
        return b.lookup(tuple(math.ldexp(rounded(c), LARGER) for c in SIXTEENTHS), b.bits(self.shifted, "i32"))

    def times(self, b: Builder, x: Value, more: Value, rest: Value, kept: Value) -> Value:
        """x * more * (1 + rest) * 2**(n - 64), rounded about once; 0 where it is not kept."""
        prod = b.mul(x, more)
        lost = b.fma(x, more, b.neg(prod))
        return scalef(b, b.add(prod, b.fma(prod, rest, lost)), b.sub(self.shifted, ROUNDING + LARGER), kept)


def _bell(b: Builder, t: Value) -> Bell:
    squared = square(b, t)
    lost = b.fma(t, t, b.neg(squared))
    shifted = b.fma(squared, -LOG2E / 2, ROUNDING)
    n = b.sub(shifted, ROUNDING)
    r = b.add(b.fma(n, 2 * LN2_LOW, b.fma(n, 2 * LN2_HIGH, squared)), lost)
    low = b.lookup(tuple((exact - rounded(exact)) / exact for exact in SIXTEENTHS), b.bits(shifted, "i32"))
    return Bell(shifted, b.fma(b.polynomial(r, POWER), r, low))


def lacking(b: Builder, t: Value, kept: Value) -> Value:
    """t * (1 - Phi(t)); 0 where it is not kept."""
    interval = Interval.of(b, t, TAIL)
    change = b.fma(*interval.slope(b, t), FLOAT.step)  # of a small t what counts nothing, either
    bell = _bell(b, t)
    both = b.add(change, b.fma(change, bell.rest, bell.rest))
    return bell.times(b, b.mul(t, bell.high(b)), interval.entry(b, 1), both, kept)


def slope(b: Builder, t: Value, kept: Value) -> Value:
    """The derivative of x * Phi(x) at -t; 0 where it is not kept."""
    interval = Interval.of(b, t, SLOPE)
    change, distance = interval.slope(b, t)
    value = b.fma(change, distance, interval.entry(b, 1))
    bell = _bell(b, t)
    return bell.times(b, value, bell.high(b), bell.rest, kept)
