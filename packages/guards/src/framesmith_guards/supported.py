"""Refuses, when the package is imported, an interpreter that it does not support: ImportError."""

import sys
from contextlib import suppress

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("framesmith_guards does not support free-threaded CPython: use a build of CPython with the GIL")

with suppress(ModuleNotFoundError):  # where it was not compiled, guards are checked in Python
    import framesmith_guards._check  # noqa: F401 - refuses subinterpreters
