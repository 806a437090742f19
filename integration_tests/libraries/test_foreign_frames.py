"""Code that has nothing to do with tensors inside compiled functions: it runs eagerly, from its first call on."""

from __future__ import annotations

import io
import json
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith
import framesmith_frames

pandas = pytest.importorskip("pandas")
yaml = pytest.importorskip("yaml")
sparse = pytest.importorskip("scipy.sparse")
pytest.importorskip("scipy.sparse.linalg")
pytest.importorskip("matplotlib").use("Agg")
import matplotlib.figure  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402

SETTINGS = {"a": [1, 2.5, {"b": "text", "c": [True, None]}], "d": {"e": "f"}}


def described(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    frame = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3, 2, 1], "c": ["x", "y", "z"]})
    statistics, text = frame.describe(), frame.to_csv()
    return y + len(text), statistics.to_dict()


def as_json(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    again = json.loads(json.dumps(SETTINGS, indent=2))
    return y + again["a"][1], again


def as_yaml(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    again = yaml.safe_load(yaml.safe_dump(SETTINGS))
    return y + again["a"][1], again


LOG = logging.getLogger("foreign_frames")
LOG.propagate = False
LOG.setLevel(logging.INFO)


def logged(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    LOG.addHandler(handler)
    LOG.info("at %s", 3)
    LOG.removeHandler(handler)
    return y + 1, text.getvalue()


def files(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    folder = pathlib.Path(__file__).parent
    names = sorted([path.name for path in folder.iterdir()])
    return y + 1, (names, (folder / "__init__.py").read_text())


def solved(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    matrix = sparse.diags([1.0, -4.0, 1.0], [-1, 0, 1], shape=(20, 20)).tocsc()
    solution = sparse.linalg.spsolve(matrix, [1.0] * 20)
    return y + float(solution[0]), solution.tolist()


def plotted(x: torch.Tensor) -> Any:
    y = (x * 2).relu().sum()
    figure = matplotlib.figure.Figure(figsize=(2, 2))
    canvas = FigureCanvasAgg(figure)
    figure.add_subplot().plot([1, 2, 3])
    canvas.draw()
    return y + 1, bytes(canvas.buffer_rgba())


PROGRAMS = [described, as_json, as_yaml, logged, files, solved, plotted]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_only_frames_with_tensors_are_compiled(program: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(10)
    expected = program(x)
    compiled = framesmith.compile(program, backend="eager")
    for call in range(6):
        result, rest = compiled(x)
        torch.testing.assert_close(result, expected[0])
        assert rest == expected[1] or str(rest) == str(expected[1])
        if call == 0:
            first = framesmith.stats()
    # The function itself and what follows each of its breaks: pandas alone would have more than a thousand. What
    # follows the last one may compute nothing of tensors: it runs eagerly.
    assert first["frames_seen"] <= 15, first
    assert first["frames_failed"] == first["frames_run_once"] == 0 and first["frames_skipped"] <= 1, first
    assert framesmith.stats() == first, "the steady state asks nothing and compiles nothing"


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / x.std()


def scored(value: float) -> float:
    return float(normalised(torch.arange(4.0) * value).sum() + value)


def test_a_callback_with_tensors_is_compiled_inside_foreign_code() -> None:
    def applied(x: torch.Tensor) -> Any:
        y = x + 1
        return y, pandas.Series([1.0, 2.0, 3.0]).apply(scored).tolist()

    x = torch.randn(3)
    expected = applied(x)
    compiled = framesmith.compile(applied, backend="eager")
    for _ in range(6):
        result = compiled(x)
        torch.testing.assert_close(result[0], expected[0])
        assert result[1] == pytest.approx(expected[1])
    assert framesmith_frames.stats(scored).hits + framesmith_frames.stats(normalised).hits > 0


def passed_on(values: Any) -> Any:
    return values[0] if isinstance(values, list) else values * 2 + 1


@pytest.mark.parametrize("before", [1, 5, 40, 200])
def test_a_tensor_turns_up(before: int) -> None:
    def program(values: Any) -> Any:
        print(end="")
        return passed_on(values)

    compiled = framesmith.compile(program, backend="eager", recompile_limit=64)
    for _ in range(before):
        assert compiled([1]) == 1
    seen = framesmith.stats()["graphs"]
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert framesmith.stats()["graphs"] == seen + 1
