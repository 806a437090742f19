"""Buffers in an arena: none that live at the same time share bytes, and not more is asked for than they need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.schedule.arena import ALIGNMENT, Span, placed


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for k in range(draw(st.integers(1, 24))):
        first = draw(st.integers(0, 30))
        size = ALIGNMENT * draw(st.integers(0, 40))
        found.append(Span(f"b{k}", size, first, first + draw(st.integers(0, 12))))
    return found


@settings(max_examples=300, deadline=None)
@given(spans())
def test_living_buffers_do_not_overlap(given_spans: list[Span]) -> None:
    offsets, size = placed(given_spans)
    assert offsets.keys() == {span.name for span in given_spans}
    for one in given_spans:
        assert offsets[one.name] % ALIGNMENT == 0 and offsets[one.name] + one.size <= size
        for other in given_spans:
            if one is not other and one.meets(other) and one.size and other.size:
                apart = offsets[one.name] + one.size <= offsets[other.name]
                assert apart or offsets[other.name] + other.size <= offsets[one.name], (one, other)
    assert size <= sum(span.size for span in given_spans)


def test_a_chain_takes_two_places() -> None:
    chain = [Span(f"b{k}", 640, k, k + 1) for k in range(20)]
    assert placed(chain)[1] == 2 * 640


def test_a_small_one_goes_into_a_gap() -> None:
    found = [Span("long", 640, 0, 9), Span("early", 1280, 0, 2), Span("late", 1280, 4, 9), Span("small", 64, 1, 8)]
    assert placed(found)[1] == 640 + 1280 + 64
