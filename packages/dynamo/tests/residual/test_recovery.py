"""A compiled graph that raises: the frame restarts eagerly, and no effect of the first attempt is visible."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import active, check, compiled, run_eagerly

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter

GOOD, BAD = torch.tensor([1]), torch.tensor([7])


def caught(table: Any, index: Any, log: list[Any]) -> Any:
    log.append("before")
    try:
        found = F.embedding(index, table)
        log.append("found")
    except IndexError as error:
        log.append(str(error))
        found = table + 1
    finally:
        log.append("after")
    return found


def uncaught(table: Any, index: Any, log: list[Any]) -> Any:
    log.append("before")
    found = table[index]
    log.append("found")
    return found


class Swallow:
    def __enter__(self) -> Swallow:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.kind = kind
        return True


def swallowed(table: Any, index: Any, log: list[Any]) -> Any:
    manager = Swallow()
    with manager:
        table = table[index]
    log.append(manager.kind)
    return table * 2


def chained(table: Any, index: Any, log: list[Any]) -> Any:
    try:
        return table[index]
    except IndexError as error:
        raise KeyError(log.append(1)) from error


def returns_in_finally(table: Any, index: Any, log: list[Any]) -> Any:
    try:
        table = table[index] + 1
    finally:
        return table * 2


def unused(table: Any, index: Any, log: list[Any]) -> Any:
    try:
        table[index]
    except IndexError:
        return table - 1
    return table + 1


def changes_before(table: Any, index: Any, log: list[Any]) -> Any:
    table.add_(1)
    noise = torch.rand(2)
    try:
        return table[index] + noise, torch.rand(1)
    except IndexError:
        return torch.rand(1)


def changes_behind(table: Any, index: Any, log: list[Any]) -> Any:
    try:
        found = table[index]
        table.mul_(3)
    except IndexError:
        return table
    return found


def state(table: Any, index: Any, log: list[Any]) -> Any:
    try:
        with torch.no_grad():
            return table[index]
    except IndexError:
        log.append(torch.is_grad_enabled())
        return table


def inner(table: Any, index: Any) -> Any:
    return table.index_select(0, index)


def in_a_callee(table: Any, index: Any, log: list[Any]) -> Any:
    log.append(0)
    try:
        return inner(table, index)
    except IndexError:
        log.append(1)
        return inner(table, torch.tensor([0]))


def behind_a_break(table: Any, index: Any, log: list[Any]) -> Any:
    table = table * 2
    print(len(log))
    try:
        return table[index]
    except IndexError:
        return table


def closure(table: Any, index: Any, log: list[Any]) -> Any:
    count = 0

    def step(which: Any) -> Any:
        nonlocal count
        count += 1
        return table[which]

    try:
        return step(GOOD) + step(index)
    except IndexError:
        return count


PROGRAMS = [
    caught, uncaught, swallowed, chained, returns_in_finally, unused, changes_before, changes_behind, state,
    in_a_callee, behind_a_break, closure,
]  # fmt: skip


@pytest.mark.parametrize("index", [GOOD, BAD], ids=["good", "bad"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[..., Any], index: Any) -> None:
    subject = check(program, torch.arange(8.0).view(4, 2), index, [])
    assert subject.graphs


def test_the_entry_serves_both() -> None:
    subject = compiled(lambda table, index: table[index] * 2)
    table = torch.arange(8.0).view(4, 2)
    for index in (GOOD, BAD, GOOD, BAD):
        if index is BAD:
            with pytest.raises(IndexError):
                subject(table, index)
        else:
            assert torch.equal(subject(table, index), table[index] * 2)
    assert len(subject.of_kind("entry")) == 1


def test_the_traceback_is_eagers() -> None:
    found = {}
    for name, fn in {"eager": uncaught, "compiled": compiled(uncaught)}.items():
        with pytest.raises(IndexError) as info:
            fn(torch.zeros(4, 2), BAD, [])
        last = traceback.extract_tb(info.value.__traceback__)[-1]
        found[name] = (last.name, last.lineno, last.line, info.value.__context__)
    assert found["eager"] == found["compiled"]


def test_random_state_is_put_back() -> None:
    def draws(table: Any, index: Any) -> Any:
        return F.dropout(table)[index]

    subject = compiled(draws)
    results = []
    for fn in (draws, subject):
        torch.manual_seed(3)
        with pytest.raises(IndexError):
            fn(torch.zeros(4, 2), BAD)
        results.append(torch.rand(4))
    assert torch.equal(*results)


def test_running_statistics_are_put_back() -> None:
    """torch updates them without declaring it, so their version does not change."""

    def step(norm: Any, x: Any, target: Any) -> Any:
        try:
            return F.cross_entropy(norm(x), target)
        except IndexError:
            return x.sum()

    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    norms = [torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)]
    x = torch.arange(6.0).view(2, 3)
    for fn, norm in zip((step, compiled(step)), norms, strict=True):
        for target in (good, bad, good):
            fn(norm, x, target)
    assert torch.equal(norms[0].running_mean, norms[1].running_mean)
    assert norms[0].num_batches_tracked == norms[1].num_batches_tracked == 3


def history_and_failure(x: Any, index: Any) -> Any:
    x.mul_(2)
    return x[index]


def test_a_change_of_history_breaks_before_what_may_fail() -> None:
    subject = compiled(history_and_failure)
    for index in (GOOD, BAD):
        leaf = torch.ones(4, requires_grad=True)
        x = leaf * 1
        if index is BAD:
            with pytest.raises(IndexError):
                subject(x, index)
        else:
            subject(x, index)
        x.sum().backward()
        assert torch.equal(leaf.grad, torch.full((4,), 2.0))
    assert subject.of_kind("break")[0].broken.kind.id == "cannot-undo"


def history_and_length(x: Any, mask: Any) -> Any:
    x += mask.masked_select(mask > 0)
    return x * 2


def test_a_change_of_history_breaks_before_what_a_length_of_data_may_refuse() -> None:
    """The trace does not know that one element is broadcast: the graph fails there, after its first change."""
    subject = compiled(history_and_length)
    for values in ([1.0, 0.0, 2.0, 3.0], [0.0, 0.0, 4.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 5.0, 5.0, 0.0]):
        seen = []
        for fn in (history_and_length, subject):
            leaf = torch.tensor(values, requires_grad=True)
            x = torch.ones(2, 3)
            try:
                out: Any = fn(x, leaf)
                out.pow(2).sum().backward()
                seen.append((out.tolist(), leaf.grad.tolist(), x._version))
            except RuntimeError as error:
                seen.append(str(error))
        assert seen[0] == seen[1]
    assert subject.of_kind("break")[0].broken.kind.id == "cannot-undo"


def drawn_behind_a_change(x: Any) -> Any:
    x.mul_(2)
    return torch.rand(2)


VIEWS = {
    "a leaf": lambda leaf: leaf,
    "its view": lambda leaf: leaf[1:],
    "a part": lambda leaf: (leaf * 1).unbind(0)[0],
    "a view": lambda leaf: (leaf * 1)[1:],
    "a tensor": lambda leaf: leaf * 1,
}


@pytest.mark.parametrize("first", ["a view", "a tensor"])
@pytest.mark.parametrize("then", VIEWS)
def test_what_autograd_refuses_to_change_is_refused_at_its_place(first: str, then: str) -> None:
    subject = compiled(drawn_behind_a_change)
    subject(VIEWS[first](torch.ones(3, 3, requires_grad=True)))
    seen = []
    for fn in (drawn_behind_a_change, subject):
        torch.manual_seed(0)
        try:
            out: Any = fn(VIEWS[then](torch.ones(3, 3, requires_grad=True)))
        except RuntimeError as error:
            out = str(error)
        seen.append((str(out), torch.get_rng_state().tolist()))
    assert seen[0] == seen[1]


@pytest.fixture
def heard() -> Iterator[list[float]]:
    """The arguments of an operator that returns nothing: `torch.ops.recovery.note`."""
    seen: list[float] = []
    with torch.library._scoped_library("recovery", "FRAGMENT") as made:
        made.define("note(Tensor x) -> ()")
        made.impl("note", lambda x: seen.append(float(x.sum())), "CPU")
        made.impl("note", lambda x: None, "Meta")
        yield seen


def notes_before_and_after(x: Any, index: Any) -> Any:
    torch.ops.recovery.note(x)
    y = x[index]
    torch.ops.recovery.note(y)
    return y * 2


def notes_last(x: Any, index: Any) -> Any:
    y = x[index]
    torch.ops.recovery.note(x)
    return y * x[index]


@pytest.mark.parametrize("function", [notes_before_and_after, notes_last])
@pytest.mark.parametrize("indices", [[GOOD, BAD, GOOD], [BAD, GOOD, BAD]])
def test_what_an_operator_does_outside_of_tensors_is_done_once(
    heard: list[float], function: Callable[..., Any], indices: list[torch.Tensor]
) -> None:
    subject = compiled(function)
    x = torch.arange(4.0)
    for index in indices:
        outcome(function, x, index)
        expected = heard.copy()
        heard.clear()
        outcome(subject, x, index)
        assert heard == expected
        heard.clear()


def outcome(function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(IndexError):
        function(*args)


def planted(error: BaseException) -> Callable[..., Any]:
    """A compiler whose code always raises."""

    def compile_graph(module: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise error

        return run

    return compile_graph


def double(x: Any) -> Any:
    return x * 2


def test_the_compilers_own_error_is_reported_and_the_result_is_eagers() -> None:
    frames.reset()
    events: list[Any] = []
    with active(FrameConverter(planted(ZeroDivisionError("mine")), on_event=events.append)):
        assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
    [found] = [event for event in events if event.kind == "error"]
    assert isinstance(found.error, ZeroDivisionError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_from_outside_go_on(error: type[BaseException]) -> None:
    frames.reset()
    events: list[Any] = []
    raised = error()
    with active(FrameConverter(planted(raised), on_event=events.append)), pytest.raises(error) as info:
        double(torch.ones(2))
    assert info.value is raised
    assert not [event for event in events if event.kind == "error"]


def test_an_error_of_a_graph_with_changes_that_cannot_fail_goes_on() -> None:
    def change(x: Any) -> Any:
        x.add_(1)
        return x * 2

    frames.reset()
    with active(FrameConverter(planted(ZeroDivisionError()))), pytest.raises(ZeroDivisionError):
        change(torch.ones(2))


def test_inputs_that_share_memory() -> None:
    def add(a: Any, b: Any) -> Any:
        try:
            a.add_(b)
        except RuntimeError:
            return "refused"
        return a

    subject = compiled(add)
    x = torch.arange(5.0)
    assert torch.equal(subject(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    assert subject(x[1:], x[:-1]) == "refused"
    assert torch.equal(x, torch.arange(5.0))


def test_recursion() -> None:
    def countdown(table: Any, n: int) -> Any:
        try:
            return table[torch.tensor([n])]
        except IndexError:
            return countdown(table, n - 1) + 1

    frames.reset()
    table = torch.arange(4.0)
    with active(FrameConverter(run_eagerly)):
        assert countdown(table, 6).item() == 3 + 3
