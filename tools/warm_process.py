"""Programs in processes of their own that import nothing large again: children of a server that has imported it.

A child has what the server imported (`preload`), and nothing that ran: no compiled code, no thread, no LLVM, no Triton.
It ends without the interpreter's finalization: tests of that start a Python of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")

#: The beginning of a child's program: the caller's environment, import path and arguments, and files for its output.
BEGINNING = """
import os, sys
for number, name in ((1, {stdout!r}), (2, {stderr!r})):
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
os.environ.clear()
os.environ.update({environment!r})
sys.path[:], sys.argv[:] = {path!r}, {arguments!r}
"""
MODULE = "import runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
PROGRAM = "exec(compile({source!r}, '<string>', 'exec'), {{'__name__': '__main__'}})\n"


class Ended(NamedTuple):
    """The end of a process: its exit status and its output."""

    #: below 0: the signal that ended it
    returncode: int
    stdout: str
    stderr: str


def preload(*modules: str) -> None:
    """Have the server import these modules; to be called before the first process."""
    CONTEXT.set_forkserver_preload([*modules])


def run_module(module: str, *arguments: str, variables: Mapping[str, str] | None = None, timeout: float = 900) -> Ended:
    """Run a module as `python -m` does, with more environment variables.

    One that takes longer than `timeout` seconds is killed.
    """
    return _run(MODULE.format(module=module), [module, *arguments], variables or {}, timeout)


def run_program(source: str, *arguments: str, timeout: float = 120) -> Ended:
    """Run a program as `python -c` does; one that takes longer than `timeout` seconds is killed."""
    return _run(PROGRAM.format(source=source), ["-c", *arguments], {}, timeout)


def _run(ending: str, arguments: Sequence[str], variables: Mapping[str, str], timeout: float) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr, program = (Path(folder, name) for name in ("stdout", "stderr", "program.py"))
        beginning = BEGINNING.format(
            stdout=str(stdout),
            stderr=str(stderr),
            environment={**os.environ, **variables},
            path=[path or os.getcwd() for path in sys.path],
            arguments=[*arguments],
        )
        program.write_text(beginning + ending)
        process = CONTEXT.Process(target=runpy.run_path, args=(str(program),), kwargs={"run_name": "__main__"})
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return Ended(process.exitcode, stdout.read_text(), stderr.read_text())
