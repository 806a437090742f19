"""Fixtures: a clean hook around every test, entries run in place and as functions, a callback made from pairs."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import framesmith_frames as frames
from framesmith_frames import _hook

sys.path.insert(0, str(Path(__file__).parent))


def raise_it(error: BaseException, frame: frames.FrameInfo) -> None:
    """An error handler for tests that expect no error."""
    raise error


@pytest.fixture(autouse=True)
def no_collection_callbacks() -> Iterator[None]:
    """Remove callbacks of garbage collection (hypothesis has one), which would be offered."""
    kept, gc.callbacks[:] = list(gc.callbacks), []
    yield
    gc.callbacks[:] = [*kept, *gc.callbacks]


@pytest.fixture(autouse=True)
def clean_hook() -> Iterator[None]:
    frames.reset()
    previous = frames.set_error_handler(raise_it)
    yield
    assert frames.get_callback() is None
    assert frames.hook_state() == {"linked": False, "on_top": False, "active_threads": 0, "suspended": 0}
    frames.set_error_handler(previous)
    frames.reset()


@pytest.fixture(params=["in place", "as a function"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    previous = _hook.never_in_place(request.param == "as a function")
    yield
    _hook.never_in_place(previous)


class Replacing:
    """A callback that replaces functions by others and skips the rest; records the names of offered functions."""

    def __init__(self, pairs: dict[Any, Any], check: Callable[..., bool], complete: bool) -> None:
        self.codes = {original.__code__: new.__code__ for original, new in pairs.items()}
        self.check = check
        self.complete = complete
        self.asked: list[str] = []

    def __call__(self, frame: frames.FrameInfo) -> frames.Entry | frames.SKIP:
        self.asked.append(frame.code.co_name)
        if frame.code in self.codes:
            return frames.Entry(self.check, self.codes[frame.code], complete=self.complete)
        return frames.SKIP("not in the table")


def always(args: tuple[Any, ...], function: FunctionType) -> bool:
    return True


@pytest.fixture
def replacing() -> Callable[..., Replacing]:
    def make(pairs: dict[Any, Any], check: Callable[..., bool] = always, complete: bool = False) -> Replacing:
        return Replacing(pairs, check, complete)

    return make
