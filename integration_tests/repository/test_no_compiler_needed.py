"""Compiling needs no C++ compiler, and does not import the system it replaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch
import framesmith

def f(x, y):
    return torch.softmax(torch.nn.functional.gelu(x * y + 1), -1)

compiled = framesmith.compile(f, strict=True)
x, y = torch.randn(4, 8), torch.randn(4, 8)
torch.testing.assert_close(compiled(x, y), f(x, y))
assert framesmith.stats()["frames_compiled"] == 1, framesmith.stats()
replaced = [name for name in ("torch._dynamo.eval_frame", "torch._inductor.codecache", "torch._functorch.aot_autograd")
            if name in sys.modules]
print("replaced modules loaded:", replaced)
"""


def test_compiling_with_an_empty_path(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "CC": "/nonexistent", "CXX": "/nonexistent"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "replaced modules loaded: []" in done.stdout
