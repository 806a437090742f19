"""The programs of one compiler: of passes that are alike there is one, for whoever captures with that compiler."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx

from framesmith_autograd_compiler.errors import OnFailure, warn_of_failure
from framesmith_autograd_compiler.patterns import pattern_of
from framesmith_autograd_compiler.program import CompilerFn, Program

#: Programs that are kept; beyond it, the one that was asked for least recently goes.
CACHE_SIZE: Final = 256


@dataclass
class Programs:
    """Programs by the pattern of what was recorded. One thread at a time uses it, inside the engine's gate."""

    compiler_fn: CompilerFn
    on_failure: OnFailure = warn_of_failure
    _by_pattern: OrderedDict[Any, Program] = field(default_factory=OrderedDict)

    def find(self, graph: fx.Graph) -> Program | None:
        """The program of a pass recorded before that is like this one, or None."""
        pattern = pattern_of(graph)
        known = self._by_pattern.get(pattern)
        if known is not None:
            self._by_pattern.move_to_end(pattern)
        return known

    def make(self, graph: fx.Graph) -> Program:
        """A program for a recorded pass."""
        program = Program(graph, self.compiler_fn, self.on_failure)
        pattern = pattern_of(graph)
        if pattern is not None:
            self._by_pattern[pattern] = program
            if len(self._by_pattern) > CACHE_SIZE:
                self._by_pattern.popitem(last=False)
        return program
