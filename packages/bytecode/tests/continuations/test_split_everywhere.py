"""Every kind of item, split at every instruction: result, exception, lines and order of effects stay."""

import pytest
from split_definitions import PROGRAMS
from splitting import split_everywhere

from framesmith_bytecode import decode


@pytest.mark.parametrize("name", PROGRAMS)
def test_split_everywhere(name, long_run):
    """The ordinary run skips some items of long functions; the long one splits continuations again."""
    function, runs = PROGRAMS[name]
    step = 1 if long_run else 1 + len(decode(function.__code__).instructions) // 150
    assert split_everywhere(function, runs, step=step, again=13 if long_run else 0) == {}
