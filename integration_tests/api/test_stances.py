"""Programs under every stance of torch.compile, cold and warm, do what they do in eager mode.

They are 30 in every run, 100 with `FRAMESMITH_LONG=1`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

import framesmith
from framesmith_dynamo import StanceForbids
from integration_tests.harness.differential import Case, Run, assert_same_outcomes, eager, run
from integration_tests.harness.sweeps import LONG
from integration_tests.programs import IN_FAMILIES, PROGRAMS

COUNT = 100 if LONG else 30

#: Functions and modules, with breaks and without, in groups of a kind.
GROUPS = ("functions", "modules", "control_flow", "mutation", "training", "breaks", "tensors", "objects", "reruns")
STANCES: dict[str, dict[str, Any]] = {
    "default": {},
    "force_eager": {},
    "eager_on_recompile": {},
    "eager_then_compile": {},
    "aot_eager_then_compile": {},
    "force_backend": {"stance": "default", "force_backend": "aot_eager"},
    "skip_guard_eval_unsafe": {"stance": "default", "skip_guard_eval_unsafe": True},
    "fail_on_recompile": {},  # the last: a program that is refused may leave what its next call would have put back
}
#: Stances under which nothing is compiled that was not before.
NOTHING_NEW = ("force_eager", "eager_on_recompile", "fail_on_recompile")


def chosen() -> list[str]:
    """As many programs, from each group in turn."""
    by_group = [
        [name for name in PROGRAMS if name.startswith(f"{group}.") and name not in IN_FAMILIES] for group in GROUPS
    ]
    turns = [[names[turn] for names in by_group if turn < len(names)] for turn in range(max(map(len, by_group)))]
    return [name for turn in turns for name in turn][:COUNT]


CHOSEN = chosen()


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")
    framesmith.reset()


def in_stance(name: str) -> contextlib.AbstractContextManager[Any]:
    """The context of a stance."""
    manager: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance(**{"stance": name, **STANCES[name]})
    return manager


def under(make: Callable[[], Case], stance: str | None, *, warm: bool, graphs: list[int]) -> Case:
    """The program with its calls in a stance; `warm`: after they were made without. `graphs`: compiled before them."""
    case = make()
    case.backward &= stance != "fail_on_recompile"  # there may be no result
    count = len(case.calls)
    arounds = list(case.around) or [contextlib.nullcontext] * count
    befores = list(case.before) or [lambda: None] * count

    def first(before: Callable[[], object]) -> object:
        graphs.append(framesmith.stats()["graphs"])
        return before()

    # a stance is set where its object is made, so it is made when the call comes
    staged = [functools.partial(_entered, stance, around) for around in arounds]
    case.around = [*arounds, *staged] if warm else staged
    case.before = [*(befores if warm else []), functools.partial(first, befores[0]), *befores[1:]]
    case.calls = [*case.calls, *case.calls] if warm else case.calls
    return case


@contextlib.contextmanager
def _entered(stance: str | None, around: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    with contextlib.nullcontext() if stance is None else in_stance(stance), around():
        yield


@functools.cache
def wanted(name: str, warm: bool, backward: bool) -> Run:
    """The program's outcome in eager mode; without its backward passes where a stance may leave no result."""
    stance = None if backward else "fail_on_recompile"
    return run(lambda: under(PROGRAMS[name], stance, warm=warm, graphs=[]), eager)


def forbidden(found: Run) -> bool:
    """Whether a call was refused by the stance."""
    return any("StanceForbids" in repr(outcome.result) for outcome in found.outcomes)


@pytest.mark.sampled(40)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("stance", STANCES)
def test_programs_do_what_eager_mode_does(stance: str, warm: bool) -> None:
    refused = 0
    for name in CHOSEN:
        graphs: list[int] = []
        made = functools.partial(under, PROGRAMS[name], stance, warm=warm, graphs=graphs)
        found = run(made, functools.partial(framesmith.compile, backend="eager"))
        if stance in NOTHING_NEW:
            assert found.statistics["graphs"] == graphs[-1], name
        if stance == "fail_on_recompile" and forbidden(found):
            refused += 1
            continue
        expected = wanted(name, warm, stance != "fail_on_recompile")
        assert_same_outcomes(expected, found, f"{name} under {stance}, {'warm' if warm else 'cold'}: ")
    assert refused <= COUNT * (0.2 if warm else 1)
    assert stance != "fail_on_recompile" or warm or refused >= COUNT * 0.9


@pytest.mark.filterwarnings("ignore")
def test_a_stance_holds_in_all_threads() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        return x.sin() + 1, torch.compiler.is_compiling()

    x = torch.ones(3)
    compiled = framesmith.compile(f, backend="eager", strict=True)
    assert compiled(x)[1] is True
    seen: list[list[bool]] = []

    def calls() -> None:
        seen.append([compiled(x)[1] for _ in range(50)])

    for stance, compiling in (("force_eager", False), ("default", True), ("force_eager", False)):
        seen.clear()
        with torch.compiler.set_stance(stance):
            threads = [threading.Thread(target=calls) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert seen == [[compiling] * 50] * 8


def test_a_stance_that_is_refused_leaves_everything_as_it_was() -> None:
    def f(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        log.append(len(log))
        return x + 1

    compiled, x, log = framesmith.compile(f, backend="eager", strict=True), torch.ones(3), []
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(StanceForbids):
        compiled(x, log)
    assert log == []
    assert torch.equal(compiled(x, log), x + 1) and log == [0]
