"""Instruction handlers, one file for each family of operations. `load` registers them all."""

from __future__ import annotations

import importlib

FAMILIES = (
    "stack", "variables", "names", "attributes", "operators", "jumps", "calls", "containers", "exceptions",
    "contexts", "functions", "formatting", "generators", "matching",
)  # fmt: skip


def load() -> None:
    """Import every family; cheap after the first time."""
    for name in FAMILIES:
        importlib.import_module(f"framesmith_dynamo.interpreter.handlers.{name}")
