"""`compile()`'s settings, and what goes with it: explain, stats, reset, disable, nesting, threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest
import torch

import framesmith
from framesmith_dynamo import BreakNotAllowed


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", framesmith.FramesmithWarning)
        yield


def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.tanh(x * k)


def test_a_second_call_is_not_compiled_again() -> None:
    compiled = framesmith.compile(scaled)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3), 2.0), scaled(torch.ones(3), 2.0))
    counters = framesmith.stats()
    assert (counters["frames_compiled"], counters["graphs"], counters["recompilations"]) == (1, 1, 0)


def test_what_a_guard_watches_is_compiled_again_and_explained() -> None:
    compiled = framesmith.compile(scaled)
    arguments = [
        (torch.ones(3), 2.0),
        (torch.ones(4), 2.0),
        (torch.ones(3, dtype=torch.float64), 2.0),
        (torch.ones(3), 3.0),
        (torch.ones(3, requires_grad=True), 2.0),
    ]
    for _ in range(2):
        for x, k in arguments:
            torch.testing.assert_close(compiled(x, k), scaled(x, k))
    counters = framesmith.stats()
    assert (counters["frames_compiled"], counters["recompilations"]) == (5, 4)


def test_the_newer_settings_of_precision_are_watched() -> None:
    """torch's older functions raise where these alone are set."""
    compiled = framesmith.compile(scaled, strict=True)
    settings_of_backends = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    before = [setting.fp32_precision for setting in settings_of_backends]
    try:
        for at, precision, count in (
            (0, "bf16", 1),  # kernels on the CPU look themselves
            (1, "tf32", 2),
            (1, "ieee", 2),
        ):
            settings_of_backends[at].fp32_precision = precision
            torch.testing.assert_close(compiled(torch.ones(3), 2.0), scaled(torch.ones(3), 2.0))
            assert framesmith.stats()["frames_compiled"] == count
    finally:
        for setting, was in zip(settings_of_backends, before, strict=True):
            setting.fp32_precision = was


def test_the_recompile_limit_leaves_the_rest_to_python() -> None:
    compiled = framesmith.compile(scaled, recompile_limit=2, dynamic=False)
    with pytest.warns(framesmith.FramesmithWarning) as reported:
        for k in (1.0, 2.0, 3.0, 4.0, 1.0):
            torch.testing.assert_close(compiled(torch.ones(3), k), scaled(torch.ones(3), k))
    counters = framesmith.stats()
    assert (counters["frames_compiled"], counters["recompile_limits"]) == (2, 1)
    [warning] = reported
    message = str(warning.message)
    assert "scaled: compiled 2 times, the limit" in message and "raise recompile_limit" in message
    assert "L['k'] has changed 2 times, at last L['k']: expected 2.0, found 3.0" in message
    assert (warning.filename, warning.lineno) == (__file__, scaled.__code__.co_firstlineno + 1)  # which uses k


def test_fullgraph_refuses_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("here")
        return x * 2

    with pytest.raises(BreakNotAllowed, match=r"print\(\) is called"):
        framesmith.compile(f, fullgraph=True)(torch.ones(2))
    whole = framesmith.compile(scaled, fullgraph=True)
    torch.testing.assert_close(whole(torch.ones(2), 1.0), scaled(torch.ones(2), 1.0))


def test_explain_shows_graphs_breaks_and_guards(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("here")
        return y.cos()

    report = framesmith.explain(f, torch.ones(2))
    assert capsys.readouterr().out == "here\n"
    assert (report.graph_count, report.break_count) == (2, 1)
    text = str(report)
    for wanted in (
        "2 graph(s), 1 break(s)",
        "[print]",
        "what to do:",
        "def check(args, function):",
        "x.size() == (2,)",
        "f(x):",
        "('here')",
        "f.<resumed at line ",
    ):
        assert wanted in text, text
    again = framesmith.explain(framesmith.compile(scaled), torch.ones(2), 1.0)
    assert (again.graph_count, again.break_count) == (1, 0)


def test_explain_shows_the_code_of_each_entry_as_python() -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"double": x * 2}

    [entry] = framesmith.explain(f, torch.ones(2)).of_kind("entry")
    lines = [line.strip() for line in entry.residual_text.splitlines()]
    assert lines[0].startswith("def ") and lines[0].endswith("f(x):")
    assert any("forward of GraphModule()>" in line and line.endswith("(x)") for line in lines)
    assert any("{'double': " in line for line in lines)


def test_settings_do_not_meet_each_others_entries() -> None:
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        seen.append(gm)
        return gm.forward

    x = torch.ones(3)
    framesmith.compile(scaled)(x, 1.0)
    framesmith.compile(scaled, backend=backend)(x, 1.0)
    assert len(seen) == 1
    framesmith.compile(scaled, backend=backend)(x, 1.0)
    assert len(seen) == 1, "equal settings share what was compiled"


class Named(torch.nn.Module):
    """A callable with a name and, as every module, with a method `compile`; no backend of the protocol."""

    name = "named"

    def forward(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        return graph


def test_a_module_as_backend_is_a_callable() -> None:
    x = torch.ones(3)
    assert torch.equal(framesmith.compile(scaled, backend=Named())(x, 2.0), scaled(x, 2.0))


def test_disabled_functions_run_eagerly() -> None:
    calls = []

    @framesmith.disable
    def plain(x: torch.Tensor) -> torch.Tensor:
        calls.append(type(x))
        return x + 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return plain(x * 2) * 3

    compiled = framesmith.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 9.0))
    assert calls == [torch.Tensor, torch.Tensor]
    assert framesmith.stats()["breaks"] == 1


def test_reset_forgets() -> None:
    compiled = framesmith.compile(scaled)
    compiled(torch.ones(2), 1.0)
    framesmith.reset()
    assert set(framesmith.stats().values()) == {0}
    compiled(torch.ones(2), 1.0)
    assert framesmith.stats()["frames_compiled"] == 1


def test_compiled_functions_call_each_other() -> None:
    inner = framesmith.compile(scaled)

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x, 2.0) + 1

    torch.testing.assert_close(framesmith.compile(f)(torch.ones(2)), scaled(torch.ones(2), 2.0) + 1)
    assert framesmith.stats()["breaks"] == 0


def test_verify_runs_a_right_graph() -> None:
    compiled = framesmith.compile(scaled, verify=True, strict=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3), 2.0), scaled(torch.ones(3), 2.0))


def test_many_threads_share_compiled_functions() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    compiled = framesmith.compile(model)
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for step in range(20):
                    x = torch.randn(1 + step % 3, 4, generator=generator)
                    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_next_to_torch_compile() -> None:
    eager = torch.compile(scaled, backend="eager")
    ours = framesmith.compile(scaled)

    def both(x: torch.Tensor) -> torch.Tensor:
        return ours(x, 2.0) + eager(x, 2.0)

    x = torch.ones(3)
    for fn in (both, framesmith.compile(both), torch.compile(both, backend="eager")):
        torch.testing.assert_close(fn(x), 2 * scaled(x, 2.0))
