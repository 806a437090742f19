"""Checks of a compiler's assumptions, separate from a program's own wherever the graph runs."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from framesmith_aten.assumptions import Asserted, asserted_by, assumed, is_assumption, raising_assumptions
from framesmith_aten.contract import AssumptionFailed, Runner


def graph(*messages: str) -> fx.GraphModule:
    """A graph that asserts its numbers one by one."""
    made = fx.Graph()
    for at, message in enumerate(messages):
        number = made.placeholder(f"n{at}")
        made.call_function(torch.ops.aten._assert_scalar.default, (number, message))
    made.output(())
    return fx.GraphModule({}, made)


def test_a_failed_assumption_is_an_error_of_its_own() -> None:
    module = graph(assumed("few"), "the program's")
    run = raising_assumptions(module.forward, module.graph.nodes)
    assert run(1, 1) == ()
    with pytest.raises(AssumptionFailed, match=r"^few$"):
        run(0, 1)
    with pytest.raises(RuntimeError, match=r"^the program's$") as info:
        run(1, 0)
    assert type(info.value) is RuntimeError


def test_messages_say_who_relies_on_a_condition() -> None:
    module = graph("the program's", assumed("few"), assumed("many", Asserted.CHOICE))
    checks = module.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    assert list(map(asserted_by, checks)) == [Asserted.PROGRAM, Asserted.OPERATOR, Asserted.CHOICE]
    assert list(map(is_assumption, checks)) == [False, True, True]
    assert assumed(assumed("many", Asserted.CHOICE)) == assumed("many", Asserted.CHOICE)
    assert asserted_by(next(iter(module.graph.nodes))) is None
    with pytest.raises(AssumptionFailed, match=r"^many$"):
        raising_assumptions(module.forward, module.graph.nodes)(1, 1, 0)


def test_an_error_of_the_programs_in_such_words_is_the_programs() -> None:
    module = graph(assumed("few"))

    def run(number: int) -> None:
        module.forward(number)
        raise RuntimeError(assumed("many"))

    with pytest.raises(RuntimeError, match=r"many$") as info:
        raising_assumptions(run, module.graph.nodes)(1)
    assert type(info.value) is RuntimeError


def test_a_function_without_assumptions_is_returned_as_it_is() -> None:
    module = graph("the program's")
    assert not any(map(is_assumption, module.graph.nodes))
    forward = module.forward
    assert raising_assumptions(forward, module.graph.nodes) is forward
    runner = Runner(forward, assumes=True)
    assert Runner.of(runner) is runner and Runner.of(forward) == Runner(forward)
    assert assumed(assumed("few")) == assumed("few")
