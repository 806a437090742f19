"""Steps over lists of tensors through the cuda backend on CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from case_selection.sweeps import a_part
from graphs.tracing import mutating
from interpreter_scripts.attempts import failures_of
from sample_programs.list_steps import LISTS, ODD, chained, clipped
from torch import fx

from framesmith_backends import CudaBackend

#: Of so many checks one is made by default.
PART = 6


def check(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], tolerance: float = 1e-5) -> None:
    plain, compiled = ([x.clone() for x in inputs] for _ in range(2))
    wanted = gm(*plain)
    found = CudaBackend().compile(gm, inputs)(list(compiled))
    for one, other in zip([*found, *compiled], [*wanted, *plain], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def checks() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {
        one.name: lambda one=one: check(one.graph(), one.inputs(), 1e-2 if one.dtype == torch.bfloat16 else 1e-5)  # type: ignore[misc]
        for one in LISTS
    }
    torch.manual_seed(0)
    gradients = [torch.rand(shape) for shape in ODD]
    found["clipped"] = lambda: check(mutating(clipped, gradients, range(len(gradients))), gradients)
    tensors = [torch.rand(40) for _ in range(5)]
    found["chained"] = lambda: check(mutating(chained, tensors, range(5)), tensors)
    return found


def main() -> int:
    return failures_of(a_part(checks().items(), PART))


if __name__ == "__main__":
    sys.exit(main())
