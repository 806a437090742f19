"""Refusal of interpreters for which there is no binary of the extension."""

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError("framesmith-frames does not support free-threaded CPython: use a build of CPython with the GIL.")
