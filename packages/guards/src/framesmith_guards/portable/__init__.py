"""Guard sets as portable text: JSON that names things and executes nothing, neither when written nor when read."""

from framesmith_guards.portable.documents import dumps, loads

__all__ = ["dumps", "loads"]
