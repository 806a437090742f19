# ruff: noqa: E501
"""Symbolic sizes and numbers: those that changed, those that are marked, all, none; and unbacked ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import check, compiled, entries_for, same

import framesmith_frames as frames
from framesmith_dynamo import (
    BreakNotAllowed,
    MarkViolated,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
)
from framesmith_dynamo.graph import symbols


def rows(*counts: int) -> list[tuple[torch.Tensor]]:
    """Return tensors with this number of rows."""
    return [(torch.arange(3.0 * n).reshape(n, 3),) for n in counts]


def doubled(x: torch.Tensor) -> Any:
    """Uses the size without specialising it."""
    return x * 2 + x.shape[0], x.view(-1).shape


def test_what_changed_becomes_a_symbol() -> None:
    assert entries_for(doubled, rows(5, 5, 7, 9, 5, 2, 400)) == [1, 1, 2, 2, 2, 2, 2]


def without_gradients(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def taken(base: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return view(base)

    return taken


@pytest.mark.parametrize("made", [lambda base: base, without_gradients], ids=["with gradients", "without"])
@pytest.mark.parametrize(
    "view",
    [lambda base: base[1:], lambda base: base.t().t(), lambda base: base.view_as(base), lambda base: base.unbind(1)[0]],
    ids=["rows", "turned twice", "itself", "one of many"],
)
def test_sizes_of_views_of_what_has_gradients_change_too(made: Any, view: Any) -> None:
    leaves = [torch.ones(n, 3, requires_grad=True) for n in (5, 6, 7)]
    for bases in (leaves, [leaf * 2 for leaf in leaves]):
        taken = made(view)
        entries = entries_for(lambda x: (x.detach() * 2).sum(), [(taken(base),) for base in bases], dynamic=True)
        assert len(set(entries)) == 1


def test_a_failure_to_make_symbols_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("of ours")

    monkeypatch.setattr(symbols, "symbolic_fake", fails)
    with pytest.raises(RuntimeError, match="of ours"):
        compiled(doubled, dynamic=True)(torch.ones(3, 2))


def test_zero_and_one_are_compiled_for_alone() -> None:
    assert entries_for(doubled, rows(5, 7, 1, 0, 1, 0, 3)) == [1, 2, 3, 4, 4, 4, 4]


def test_everything_is_a_symbol_from_the_beginning() -> None:
    calls = [(torch.ones(n, m), k) for n, m, k in ((5, 3, 2), (7, 4, 9), (8, 8, 3), (2, 9, -4))]
    assert entries_for(lambda x, k: x * k + x.shape[1], calls, dynamic=True) == [1, 1, 1, 1]


def _of_keywords(x: torch.Tensor, k: dict[str, int]) -> Any:
    return (lambda **named: x * named["a"] + named["b"])(**k)


#: Programs of a tensor and a number, passed in a container.
PASSED: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "tuple": (lambda x, t: x * t[0] + len(t), lambda n: (n, n)),
    "list": (lambda x, t: x * t[0] + t[1], lambda n: [n, n / 4]),
    "dict": (lambda x, t: x * t["a"], lambda n: {"a": n}),
    "nested": (lambda x, t: x * t["a"][1][0], lambda n: {"a": [0, (n,)]}),
    "unpacked": (lambda x, t: [x * a + b for a, b in [t]], lambda n: (n, n + 3)),
    "summed": (lambda x, t: x * sum(t), lambda n: [n, 2 * n]),
    "keywords": (_of_keywords, lambda n: {"a": n, "b": n + 2}),
}


@pytest.mark.parametrize("name", PASSED)
def test_numbers_in_containers_are_symbols_from_the_beginning(name: str) -> None:
    program, make = PASSED[name]
    calls = [(torch.ones(2), make(n)) for n in (5, 6, 7, 9)]
    assert entries_for(program, calls, dynamic=True) == [1, 1, 1, 1]
    assert entries_for(program, calls) == [1, 2, 2, 2]


def test_arguments_taken_as_they_come_are_symbols_from_the_beginning() -> None:
    def program(x: torch.Tensor, *ns: int, **named: float) -> Any:
        return x * ns[0] + ns[1] - named["c"]

    frames.reset()
    subject = compiled(program, dynamic=True)
    x = torch.ones(2)
    for n in (5, 6, 7, 9):
        assert same(subject(x, n, n + 3, c=n / 4), program(x, n, n + 3, c=n / 4))
    assert len(subject.of_kind("entry")) == 1


def test_attributes_are_settings_until_they_change() -> None:
    class Scaled:
        def __init__(self, n: int) -> None:
            self.n = n

    calls = [(torch.ones(2), Scaled(n)) for n in (5, 5, 6, 7)]
    assert entries_for(lambda x, o: x * o.n, calls, dynamic=True) == [1, 1, 2, 2]


def test_a_tensor_of_two_ranks_in_turn() -> None:
    calls = [(each,) for n in range(5, 12) for each in (torch.ones(n, 3), torch.ones(n))]
    assert entries_for(lambda x: x * 2 + x.shape[0], calls) == [1, 2, 3, 4, *[4] * 10]
    assert entries_for(lambda x: x * 2 + x.shape[0], calls, dynamic=True) == [1, *[2] * 13]


def test_the_limit_names_the_size_that_is_asked_for_and_where() -> None:
    def program(x: torch.Tensor) -> Any:
        doubled = x * 2
        return doubled + len([1] * x.size(0))  # the place

    frames.reset()
    subject = compiled(program, recompile_limit=4, strict=False)
    for n in range(2, 9):
        assert same(subject(torch.ones(n)), program(torch.ones(n)))
    [limit] = subject.of_kind("limit")
    assert (
        "; L['x'].size(0) has changed 3 times, at last L['x'].size(0): expected (L['x'].size(0) == 5)" in limit.detail
    )
    assert "# the place" in limit.detail and "instead of asking what it is" in limit.detail
    assert limit.location is not None and "# the place" in limit.location.line


def test_nothing_is_a_symbol() -> None:
    assert entries_for(doubled, rows(5, 7, 9), dynamic=False) == [1, 2, 3]


@pytest.mark.parametrize("values", [(0.5, 0.25, 0.1, 3.0), (3, 4, 5, -6), (3, 4, 400_000, 8)])
def test_symbolic_numbers(values: tuple[Any, ...]) -> None:
    x = torch.ones(3)
    assert entries_for(lambda x, n: (x * n, n + 1), [(x, n) for n in values]) == [1, 2, 2, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -0.0, True, 2**40, 0, 1])
def test_numbers_that_are_known_by_their_value(value: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * n, n == n, str(n), math.copysign(1.0, n), type(n)

    frames.reset()
    subject = compiled(program, recompile_limit=20)
    x = torch.ones(3)
    for n in (0.5, 3, 0.25, 4, value, 0.75, value):
        assert repr(subject(x, n)) == repr(program(x, n))


def test_a_rate_that_is_compared_costs_one_guard() -> None:
    def program(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x * rate if rate > 0.2 else x

    x = torch.ones(3)
    assert entries_for(program, [(x, rate) for rate in (0.5, 0.4, 0.3, 0.9, 0.1, 0.15, 0.5)]) == [1, 2, 2, 2, 3, 3, 3]


def test_parameters_stay() -> None:
    def program(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x @ w

    weights = [torch.nn.Parameter(torch.ones(3, n)) for n in (2, 4, 5)]
    assert entries_for(program, [(w, torch.ones(2, 3)) for w in weights]) == [1, 2, 3]
    frames.reset()
    subject = compiled(program)
    for weight in weights:
        subject(weight, torch.ones(2, 3))
    assert not subject.of_kind("dynamic")


def test_new_symbols_are_reported_in_the_users_terms() -> None:
    frames.reset()
    subject = compiled(lambda x, rate: x * rate)
    subject(torch.ones(5, 3), 0.5)
    subject(torch.ones(7, 3), 0.25)
    assert [event.detail for event in subject.of_kind("dynamic")] == [
        "L['x'].size(0) was 5 when compiled, and is 7: it becomes dynamic now",
        "L['rate'] was 0.5 when compiled, and is 0.25: it becomes dynamic now",
    ]


# Marks


def marked(mark: Callable[..., None], *args: Any, size: int = 5, **options: Any) -> torch.Tensor:
    """Return a tensor with this number of rows, marked."""
    x = torch.arange(3.0 * size).reshape(size, 3)
    mark(x, *args, **options)
    return x


def test_a_marked_size_is_a_symbol_at_once() -> None:
    assert entries_for(doubled, [(marked(mark_dynamic, 0),), *rows(7, 9)]) == [1, 1, 1]
    assert entries_for(doubled, [(marked(torch._dynamo.mark_dynamic, 0),), *rows(7, 9)]) == [1, 1, 1]
    assert entries_for(doubled, [(marked(maybe_mark_dynamic, [0, -1]),), (torch.ones(6, 4),)]) == [1, 1]


def test_a_range_is_guarded() -> None:
    calls = [(marked(mark_dynamic, 0, min=4, max=8),), *rows(8, 4, 9, 3)]
    assert entries_for(doubled, calls)[:3] == [1, 1, 1]
    assert entries_for(doubled, calls)[3] == 2


def test_a_size_marked_to_stay_is_compiled_for_each_time() -> None:
    calls = [(marked(mark_static, 0, size=n),) for n in (5, 6, 7)]
    assert entries_for(doubled, calls) == [1, 2, 3]
    assert entries_for(doubled, [(marked(mark_static, size=n),) for n in (5, 6)], dynamic=True) == [1, 2]


def loops(x: torch.Tensor) -> torch.Tensor:
    """Specialises the number of rows."""
    total = x[0]
    for row in range(x.shape[0]):
        total = total + x[row]
    return total


def test_a_mark_that_is_violated_names_the_line() -> None:
    frames.reset()
    with pytest.raises(
        MarkViolated, match=r"L\['x'\].size\(0\) is marked dynamic, and has to be 5 here .*range\(x.shape"
    ):
        compiled(loops, strict=False)(marked(mark_dynamic, 0))
    with pytest.raises(MarkViolated, match="is 1: sizes 0 and 1 are always specialised"):
        compiled(doubled)(marked(mark_dynamic, 0, size=1))
    assert entries_for(loops, [(marked(maybe_mark_dynamic, 0),)]) == [1]


def test_nothing_is_decided_by_an_unbacked_size() -> None:
    calls = [(marked(mark_unbacked, 0, size=n),) for n in (5, 1, 0, 9)]
    assert entries_for(lambda x: (x * 2).sum(1), calls) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: mark_dynamic(x, 2), ValueError, "no dimension 2; the tensor has 2"),
        (lambda x: mark_dynamic(x, [0, -3]), ValueError, "no dimension -3"),
        (lambda x: mark_dynamic(x, 0, min=8, max=3), ValueError, "min=8 is greater than max=3"),
        (lambda x: mark_dynamic(x, 0, min=6), ValueError, "dimension 0 has size 5, which is not from min=6"),
        (lambda x: mark_dynamic(torch.nn.Parameter(x), 0), ValueError, "the sizes of a parameter are static"),
        (lambda x: mark_dynamic(5, 0), TypeError, "marks a tensor, not a int"),
        (lambda x: mark_dynamic(x, True), TypeError, "a dimension is an int, not True"),
        (lambda x: mark_dynamic(x, None), TypeError, "a dimension is an int, not None"),
        (lambda x: mark_static(x, 1.5), TypeError, "a dimension is an int, not 1.5"),
        (lambda x: maybe_mark_dynamic(x, "0"), TypeError, "a dimension is an int, not '0'"),
        (lambda x: mark_dynamic(x, 0, min=2.5), TypeError, "min is an int, not 2.5"),
        (lambda x: mark_dynamic(x, 0, max="9"), TypeError, "max is an int, not '9'"),
        (lambda x: maybe_mark_dynamic(torch.nn.Parameter(x), 0), ValueError, "the sizes of a parameter are static"),
        (lambda x: mark_unbacked(torch.nn.Parameter(x), 0), ValueError, "the sizes of a parameter are static"),
        (lambda x: (mark_static(x, 0), mark_dynamic(x, 0)), ValueError, "mark_static was called for dimension 0"),
        (lambda x: (mark_dynamic(x, 0), mark_static(x)), ValueError, "mark_dynamic was called for dimension 0"),
        (lambda x: (mark_unbacked(x, 1), mark_static(x, -1)), ValueError, "mark_unbacked was called for dimension 1"),
        (lambda x: (mark_unbacked(x, 1), mark_dynamic(x, -1)), ValueError, "mark_unbacked was called for dimension 1"),
        (lambda x: (mark_dynamic(x, 1), mark_unbacked(x, 1)), ValueError, "mark_dynamic was called for dimension 1"),
        (lambda x: mark_dynamic(x, 0, min=-5), ValueError, "min=-5 is negative"),
        (lambda x: mark_dynamic(x, torch.tensor(0)), TypeError, r"a dimension is an int, not tensor\(0\)"),
        (lambda x: mark_static(x, torch.tensor([0])), TypeError, r"a dimension is an int, not tensor\(\[0\]\)"),
    ],
)
def test_bad_marks(call: Callable[[torch.Tensor], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(torch.ones(5, 3))


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ([(torch._dynamo.mark_dynamic, 5, {})], r"L\['x'\] is marked: there is no dimension 5; the tensor has 2"),
        ([(torch._dynamo.maybe_mark_dynamic, -3, {})], "there is no dimension -3"),
        ([(torch._dynamo.mark_static, 2, {})], "there is no dimension 2"),
        ([(torch._dynamo.mark_dynamic, 0, {"min": 8, "max": 3})], "min=8 is greater than max=3"),
        ([(torch._dynamo.mark_dynamic, 0, {"min": 8, "max": 12})], "dimension 0 has size 5, which is not from min=8"),
        (
            [(torch._dynamo.mark_dynamic, 0, {}), (torch._dynamo.mark_static, 0, {})],
            r"size\(0\) is marked both dynamic",
        ),
        ([(mark_static, 1, {}), (torch._dynamo.mark_dynamic, -1, {})], r"size\(1\) is marked both dynamic and static"),
        (
            [(torch._dynamo.mark_static, 0, {}), (torch._dynamo.maybe_mark_dynamic, 0, {})],
            r"size\(0\) is marked both dynamic and static",
        ),
        (
            [(torch._dynamo.mark_static, 0, {}), (torch._dynamo.decorators.mark_unbacked, 0, {})],
            r"size\(0\) is marked both unbacked and static",
        ),
        (
            [(torch._dynamo.decorators.mark_unbacked, 0, {}), (torch._dynamo.mark_dynamic, 0, {})],
            r"size\(0\) is marked both dynamic and unbacked",
        ),
        ([(torch._dynamo.mark_dynamic, 0, {"min": -5})], "min=-5 is negative"),
    ],
)
def test_bad_marks_of_torch_raise_at_the_compiled_call(
    marks: list[tuple[Any, int, dict[str, int]]], words: str
) -> None:
    x = torch.ones(5, 3)
    for mark, dim, bounds in marks:
        mark(x, dim, **bounds)
    for dynamic in (None, True):
        with pytest.raises(MarkViolated, match=words):
            compiled(doubled, strict=False, dynamic=dynamic)(x)
    assert entries_for(doubled, [(x,)], dynamic=False) == [1]  # nothing is a symbol, and no mark is read


@pytest.mark.parametrize(
    "mark",
    [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.decorators.mark_unbacked],
)
def test_the_sizes_of_a_parameter_stay_whoever_marks_them(mark: Callable[[torch.Tensor, int], None]) -> None:
    parameter = torch.nn.Parameter(torch.ones(5, 3))
    mark(parameter, 0)
    with pytest.raises(
        MarkViolated, match=r"L\['x'\]\.size\(0\) is marked dynamic, and the sizes of a parameter are static"
    ):
        compiled(lambda x: x * 2)(parameter)


def test_marks_without_effect_are_reported_once() -> None:
    subject = compiled(doubled, dynamic=False)
    for n in (5, 6):
        subject(marked(mark_dynamic, 0, size=n))
    [event] = subject.of_kind("dynamic")
    assert event.detail.startswith("L['x'] is marked, which has no effect")


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_unbacked_size_that_broadcasts_is_reported_and_the_function_stays(dynamic: bool | None) -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y  # the place

    frames.reset()
    subject = compiled(added, dynamic=dynamic, strict=False)
    for _ in range(2):
        with pytest.raises(
            MarkViolated, match=r"L\['x'\]\.size\(0\) is marked unbacked.*the place.*maybe_mark_dynamic"
        ):
            subject(marked(mark_unbacked, 0, size=1), torch.ones(5, 3))
    for n in (5, 6, 1):
        x = marked(mark_unbacked, 0, size=n)
        assert same(subject(x, x + 1), x + x + 1)
    assert same(subject(torch.ones(1, 3), torch.ones(5, 3)), torch.ones(5, 3) * 2)
    assert subject.of_kind("skip") == subject.of_kind("error") == []


def test_marks_of_torch_may_count_from_the_end() -> None:
    assert entries_for(doubled, [(marked(torch._dynamo.mark_dynamic, -2),), *rows(7, 9)]) == [1, 1, 1]


# Unbacked numbers


def checked(x: torch.Tensor, i: torch.Tensor) -> Any:
    n = i.item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0], lambda: "too many")
    return x[:n] + 1, torch.zeros(n)


DATA: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "item": (lambda x: x * x.sum().item() + 1, [(torch.full((3,), float(n)),) for n in range(5)]),
    "number": (lambda x: (float(x.sum()), int(x[0]), x * float(x.mean())), [(torch.full((3,), n + 0.5),) for n in range(5)]),
    "index": (lambda x, i: (x[: i.item()], x.shape[0] + i.item(), int(i) * 2), [(torch.ones(5, 3), torch.tensor(i)) for i in (2, 3, 0, 5, 1)]),
    "nonzero": (lambda x: (x.nonzero() * 2, torch.nonzero(x, as_tuple=True)), [((torch.arange(6.0).reshape(2, 3) - k).relu(),) for k in (-1, 0, 2, 5, 6)]),
    "mask": (lambda x: (x[x > 0].exp().sum(), x[x > 0] * 2), [(torch.arange(6.0) - k,) for k in (-1, 0, 2, 5, 6)]),
    "masked_select": (lambda x: torch.masked_select(x, x > 0) + 1, [(torch.arange(6.0) - k,) for k in (-1, 0, 2, 5, 6)]),
    "unique": (lambda x: torch.unique(x) * 2, [(torch.arange(6) // k,) for k in (1, 2, 3, 6)] + [(torch.ones(6, dtype=torch.int64),)]),
    "repeat_interleave": (lambda x, r: torch.repeat_interleave(x, r, dim=0) + 1, [(torch.ones(3, 2), torch.tensor(r)) for r in ([1, 2, 3], [0, 0, 0], [4, 0, 1], [1, 1, 1], [0, 1, 0])]),
    "tolist": (lambda x, r: [part.sum() for part in torch.split(x, r.tolist())], [(torch.ones(6, 3), torch.tensor(r)) for r in ([1, 2, 3], [2, 2, 2], [4, 0, 2], [6, 0, 0], [0, 1, 5])]),
    "checked": (checked, [(torch.ones(6, 3), torch.tensor(i)) for i in (3, 4, 0, 1, 6)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_becomes_numbers_in_one_graph(name: str) -> None:
    fn, calls = DATA[name]
    assert entries_for(fn, calls, fullgraph=True) == [1] * len(calls)


def test_a_check_that_fails_raises_as_in_eager_mode() -> None:
    frames.reset()
    subject = compiled(checked)
    assert same(subject(torch.ones(6, 3), torch.tensor(2)), checked(torch.ones(6, 3), torch.tensor(2)))
    with pytest.raises(RuntimeError, match="too many"):
        subject(torch.ones(6, 3), torch.tensor(9))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        subject(torch.ones(6, 3), torch.tensor(-1))


def test_a_branch_on_data_breaks() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 3 else x - 1

    subject = check(program, torch.ones(3))
    assert [event.broken.kind.id for event in subject.of_kind("break") if event.broken] == ["tensor-data-branch"]
    with pytest.raises(BreakNotAllowed, match="truth of the bool"):
        compiled(program, fullgraph=True)(torch.ones(3))


OFFSETS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of an input": lambda x: x.storage_offset() + x.shape[0],
    "of a view": lambda x: (x[2:].storage_offset(), x.t().storage_offset(), x[1:] * 2),
    "of other elements": lambda x: (x.view(torch.uint8)[4:].storage_offset(), x[1:].view(torch.int32).storage_offset()),
    "given back": lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1) * 2,
    "of the storage": lambda x: x.as_strided((2,), (1,), 1) + x.shape[0],
    "taken from the tensor": lambda x: torch.as_strided(x[1:], (2,), (1,)) * 2,
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", OFFSETS)
def test_where_in_its_storage_a_tensor_begins(name: str, dynamic: bool | None) -> None:
    def part(size: int, at: int) -> tuple[torch.Tensor]:
        return (torch.arange(100.0)[at : at + size],)

    calls = [part(6, 5), part(8, 5), part(8, 9), part(9, 0), part(6, 5)]
    entries_for(OFFSETS[name], calls, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_where_diagonals_without_elements_begin(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.diagonal(-1).storage_offset(), x.diagonal(3).storage_offset(), x * 2

    for sizes in (((4, 3), (1, 5), (3, 2), (1, 1), (2, 6), (5, 7)), ((2, 5), (3, 6), (7, 8), (1, 2))):
        frames.reset()
        run = compiled(program, dynamic=dynamic)
        for size in sizes:
            assert run(torch.zeros(size))[:2] == program(torch.zeros(size))[:2]


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_one_memory_of_changing_sizes(dynamic: bool | None) -> None:
    def change_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    found = []
    for fn in (change_one, compiled(change_one, dynamic=dynamic)):
        memory = torch.arange(100.0)
        spans = ((4, 4), (5, 5), (6, 3), (7, 6), (4, 2))
        found.append([fn(memory[1 : 1 + n], memory[at : at + n]).tolist() for n, at in spans])
    assert found[0] == found[1]


def test_a_dimension_that_is_not_there_is_the_programs_error() -> None:
    def sizes(x: torch.Tensor, dim: Any) -> list[Any]:
        found: list[Any] = []
        for ask in (x.size, x.stride):
            try:
                found.append(ask(dim))
            except (IndexError, TypeError) as error:
                found.append(str(error))
        return [x + 1, *found]

    frames.reset()
    subject = compiled(sizes, dynamic=True)
    for dim in (0, 1, 2, -3, 1.5):
        assert same(subject(torch.ones(3, 4), dim), sizes(torch.ones(3, 4), dim)), dim
    assert not subject.of_kind("break") and not subject.of_kind("error")
