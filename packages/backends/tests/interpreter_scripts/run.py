"""Run a script of this folder with TRITON_INTERPRET=1, which Triton reads at its import: in a process of its own."""

from __future__ import annotations

from tools.warm_process import run_module


def interpreted(script: str, *arguments: str) -> str:
    """The output of this folder's script of that name, which ends well."""
    done = run_module(f"interpreter_scripts.{script}", *arguments, variables={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
