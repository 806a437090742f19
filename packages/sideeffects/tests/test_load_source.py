"""Every source has a loader, or a reason for having none."""

from __future__ import annotations

import pytest

from framesmith_bytecode import Codegen
from framesmith_guards import FunctionSource, Source, sources
from framesmith_sideeffects import CannotLoad, load_source
from framesmith_sideeffects.load_source import LOADERS, NOT_LOADABLE

KINDS = {cls for cls in vars(sources).values() if isinstance(cls, type) and issubclass(cls, Source)} - {Source}


def test_each_source_can_be_loaded_or_says_why_not() -> None:
    assert not LOADERS.keys() & NOT_LOADABLE.keys()
    assert LOADERS.keys() | NOT_LOADABLE.keys() == KINDS


def test_a_source_without_a_loader_is_refused_with_the_reason() -> None:
    with pytest.raises(CannotLoad, match="does not know the function"):
        load_source(Codegen(), FunctionSource())
