"""`compile(..., compiled_autograd=True)`: all later backward passes are captured."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith
from framesmith_autograd_compiler.engine import installed


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.end_compiled_autograd()
    framesmith.reset()


def f(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return (x.sin() * scale).exp().sum()


def runs() -> int:
    capture = installed().everywhere
    return 0 if capture is None else capture.runs


def gradient(function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    x = torch.linspace(0, 1, 5, requires_grad=True)
    function(x, *args).backward()
    assert x.grad is not None
    return x.grad


def test_passes_of_compiled_and_other_functions_are_captured() -> None:
    expected = gradient(f)
    compiled = framesmith.compile(f, compiled_autograd=True, strict=True)
    torch.testing.assert_close(gradient(compiled), expected)
    torch.testing.assert_close(gradient(f), expected)
    assert runs() == 2
    framesmith.end_compiled_autograd()
    gradient(compiled)
    assert runs() == 0


def test_a_decorator_and_a_module() -> None:
    @framesmith.compile(compiled_autograd=True)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return f(x)

    assert runs() == 0
    torch.testing.assert_close(gradient(decorated), gradient(f))
    model = framesmith.compile(torch.nn.Linear(5, 2), compiled_autograd=True)
    before = runs()
    gradient(lambda x: model(x).sum())
    assert runs() == before + 1


def test_passes_of_other_threads_are_captured() -> None:
    framesmith.compile(f, compiled_autograd=True)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(gradient(f)))
    thread.start()
    thread.join()
    assert runs() == 1
    framesmith.end_compiled_autograd()
    torch.testing.assert_close(found[0], gradient(f))


def test_a_block_goes_before_it() -> None:
    framesmith.compile(f, compiled_autograd=True)
    with framesmith.compile_backward() as captured:
        gradient(f)
    assert captured.runs == 1 and runs() == 0


def test_one_program_for_changing_numbers_and_blocks() -> None:
    compiled = framesmith.compile(f, compiled_autograd=True)
    found = [gradient(compiled, scale) for scale in (1.0, 2.0, 3.0, 4.0)]
    capture = installed().everywhere
    assert capture is not None and capture.runs == 4 and not capture.fallbacks
    modules = sum(len(program.modules) for program in capture.programs)
    with framesmith.compile_backward() as captured:
        gradient(compiled, 5.0)
    assert captured.programs[0] in capture.programs
    assert sum(len(program.modules) for program in capture.programs) == modules <= 4
    framesmith.end_compiled_autograd()
    torch.testing.assert_close(found, [gradient(f, scale) for scale in (1.0, 2.0, 3.0, 4.0)])


def test_it_stays_after_a_reset_with_nothing_compiled() -> None:
    framesmith.compile(f, compiled_autograd=True)
    gradient(f)
    framesmith.reset()
    assert runs() == 0
    gradient(f)
    assert runs() == 1


def test_other_settings_are_reported() -> None:
    framesmith.compile(f, compiled_autograd=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        framesmith.compile(f, compiled_autograd=True)
    with pytest.warns(framesmith.FramesmithWarning, match="with other settings than before"):
        framesmith.compile(f, compiled_autograd=True, backend="aot_eager")


def test_no_effect_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framesmith_autograd_compiler.why_not_available", lambda: "planted")
    with pytest.warns(framesmith.FramesmithWarning, match="compiled_autograd=True has no effect: planted"):
        framesmith.compile(f, compiled_autograd=True)


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(TypeError, match="compiled_autograd"):
        framesmith.compile(f, compiled_autograd="yes")  # type: ignore[call-overload]
