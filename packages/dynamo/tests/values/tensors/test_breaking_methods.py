"""Methods of tensors that break the graph at once: the frame is not traced a second time for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import check, compiled

from framesmith_dynamo import BreakNotAllowed

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


def in_front(x, y):
    z = x * 2
    z.sum().data_ptr()
    return y + 1


def with_a_full_stack(x, y):
    return [y + 1, (y * 2, (x * 3).detach().numpy().shape), y - 1]


def with_keywords(x, y):
    z = (x * y).sum()
    z.detach().numpy(force=True)
    return z.detach() * 2


def under_names(x, y):
    values = {"a": x * 2, "b": [y]}
    values["b"].append(values["a"].tolist())
    values["a"].sum().data_ptr()
    return values["b"][0] + 1, len(values["b"])


def with_changes(x, y):
    found = [1]
    y.add_(1)
    found.append(2)
    (x * y).sum().data_ptr()
    found.append(y * 2)
    return found


def in_a_block(x, y):
    with torch.no_grad():
        z = y * 2
        shown = z.numpy().copy()
        z = z + 1
    return z, shown.tolist(), torch.is_grad_enabled()


def caught(x, y):
    z = y * 2
    try:
        z.sum().numpy()
    except RuntimeError as error:
        return isinstance(error, RuntimeError), z + 1
    return z


def hooks(x, y):
    z = x * 2
    z.register_hook(lambda grad: grad * 3)
    return z.sum() + y.sum()


def in_an_argument(x, y):
    def both(one: Any, other: Any) -> Any:
        return one * 2, other

    return both(y + 1, (y * 3).numpy().tolist())


def through_a_method(x, y):
    run = (x * y).sum().data_ptr
    run()
    return y * 2


def called_in_a_callee(x, y):
    def run(loss: torch.Tensor) -> torch.Tensor:
        loss = loss * 2
        loss.data_ptr()
        return loss.detach()

    return run((x * y).sum()) + y


def in_a_loop(x, y):
    for at in range(2):
        (x * y).sum().data_ptr()
        y = y + at
    return y * 2


def on_a_branch(x, y):
    if y.shape[0] > 1:
        (x * y).sum().data_ptr()
    return y + 1


class Feed:
    """Counts how often it is asked for a tensor."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.asked = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        if self.asked == len(self.tensors):
            raise StopIteration
        self.asked += 1
        return self.tensors[self.asked - 1]


def behind_what_the_call_has_done(x, y):
    z = y * 2
    feed = Feed([z, z + 1])
    return len(list(map(torch.Tensor.numpy, feed))), feed.asked, z + 1


def said_of_gradients(x, y):
    z = (y * 2).detach()
    z.requires_grad_()
    (z * x).sum().backward()
    return z.grad


#: program -> the attempts after the first that its frames take
PROGRAMS: dict[Callable[..., Any], int] = {
    in_front: 0,
    with_a_full_stack: 0,
    with_keywords: 0,
    under_names: 0,
    with_changes: 0,
    in_a_block: 0,
    caught: 0,
    hooks: 0,
    in_an_argument: 0,
    through_a_method: 1,  # looked up before it is called
    called_in_a_callee: 1,
    in_a_loop: 0,
    on_a_branch: 0,
    behind_what_the_call_has_done: 1,
    said_of_gradients: 0,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_attempt(program: Callable[..., Any]) -> None:
    results: list[Any] = []
    for fn in (program, compiled(program)):
        x, y = leaf(X), X + 2
        results += [[fn(x, y), x.grad, y] for _ in range(3)]
    torch.testing.assert_close(results[3:], results[:3])
    subject = compiled(program)
    subject(leaf(X), X + 2)
    [first] = [event for event in subject.of_kind("entry") if event.code is program.__code__]
    assert first.trace_id is not None
    assert first.trace_id.attempt == PROGRAMS[program]


@pytest.mark.parametrize("program", [in_front, with_changes], ids=lambda program: program.__name__)
def test_it_is_still_refused_under_fullgraph(program: Callable[..., Any]) -> None:
    subject = compiled(program, fullgraph=True)
    with pytest.raises(BreakNotAllowed, match=r"data_ptr\(\)"):
        subject(leaf(X), X + 2)


def test_the_break_is_reported_once() -> None:
    subject = compiled(in_front)
    subject(leaf(X), X + 2)
    assert [event.code.co_qualname for event in subject.of_kind("break")] == ["in_front"]


def test_without_gradients_the_error_is_eagers() -> None:
    check(in_front, X, X + 2)
