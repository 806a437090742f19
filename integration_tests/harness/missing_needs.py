"""Compiled programs where torch lacks something: each case in a fork of one process, reported as JSON.

`python missing_needs.py PATH,PATH... PATH...`: each argument is a case, the dotted names that torch seems not to have.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch


def without(paths: Collection[str]) -> None:
    """Let the packages find none of these in torch: by the one function that looks there."""
    spec = importlib.util.find_spec("framesmith_guards")
    assert spec is not None and spec.submodule_search_locations is not None
    file = os.path.join(spec.submodule_search_locations[0], "needs.py")
    own = importlib.util.spec_from_file_location("framesmith_guards.needs", file)
    assert own is not None and own.loader is not None
    needs = importlib.util.module_from_spec(own)
    sys.modules["framesmith_guards.needs"] = needs
    own.loader.exec_module(needs)
    look_up = needs.look_up

    def lacking(path: str) -> Any:
        if path in paths:
            raise AttributeError(f"there is no {path}")
        return look_up(path)

    needs.look_up = lacking


def trained(run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """The loss and the gradients of one step."""
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    weight = torch.linspace(0, 2, 8).view(4, 2).requires_grad_()
    loss = run(x, weight)
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and weight.grad is not None
    return [loss.detach(), x.grad, weight.grad]


def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One step's forward pass."""
    return torch.relu(x @ weight).sum() * 2


def sized(x: torch.Tensor) -> torch.Tensor:
    """A function of the number of rows."""
    return (x * 2).sum(0) + x.shape[0]


def printing(x: torch.Tensor) -> torch.Tensor:
    """A graph break between two graphs."""
    y = x * 2
    print(end="")
    return y + 1


def outcome() -> dict[str, Any]:
    """The log's lines and the warnings of compiling, whether results are eager's, and how many graphs there were."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("framesmith.torch").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import framesmith

        pairs = [(trained(framesmith.compile(step)), trained(step))]
        compiled, broken = framesmith.compile(sized), framesmith.compile(printing)
        for rows in (2, 3, 5):
            x = torch.ones(rows, 4)
            pairs.append(([compiled(x), broken(x)], [sized(x), printing(x)]))
    same = all(torch.allclose(ours, theirs) for mine, eager in pairs for ours, theirs in zip(mine, eager, strict=True))
    outcome_as_json = [str(one.message) for one in caught if one.category.__name__ == "FramesmithWarning"]
    return {"lines": lines, "warnings": outcome_as_json, "same": same, "graphs": framesmith.stats()["graphs"]}


def in_a_fork(paths: Collection[str]) -> dict[str, Any]:
    """The outcome without these, of a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            without(paths)
            outcome_as_json = outcome()
        except BaseException as error:
            outcome_as_json = {"error": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(outcome_as_json).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process ended"}  # type: ignore[no-any-return]


if __name__ == "__main__":
    print(json.dumps([in_a_fork(case.split(",")) for case in sys.argv[1:]]))
