"""Features that the simulated GPU lacks: those that tests are known to use, and the report of them.

A test that ends because of it is skipped, one that goes on without it passes, and both are listed at the end of a run.
What is not expected here is a failure that names it, whatever the test makes of it.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

#: Patterns of names, and why it is not built.
EXPECTED = {
    "kernels that torch compiles": "they are made of source text by NVRTC",
    "the instruction wgmma.*": "matmuls of several warps, which Hopper has",
    "aten._to_sparse*": "sparse tensors have no memory of their own",
    "aten._flash_attention_forward*": "it is reached through scaled_dot_product_attention alone",
    "aten._efficient_attention_forward*": "it is reached through scaled_dot_product_attention alone",
}
#: The names by which the runtime's stand-in reports it.
CANNOT = "the simulated GPU cannot do that"
_PROPERTY = "not on the simulated GPU"


class NotBuilt(NotImplementedError):
    """Something that GPUs have and the simulated one does not. `reached` are all since they were last taken."""

    reached: list[str] = []

    def __init__(self, what: str) -> None:
        super().__init__(f"not on the simulated GPU: {what}")
        self.reached.append(what)


def is_expected(what: str) -> bool:
    return any(fnmatch.fnmatchcase(what, pattern) for pattern in EXPECTED)


def is_cause(error: BaseException | None) -> bool:
    """Whether it is the reason of an error."""
    while error is not None:
        if isinstance(error, NotBuilt) or CANNOT in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


class Reports:
    """A plugin for pytest; `take` are the names of what was asked for since it was last called."""

    def __init__(self, take: Callable[[], list[str]]) -> None:
        self.take = take

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.take()
        error: BaseException | None = None
        try:
            result = yield
        except BaseException as raised:
            error = raised
        names = sorted(set(self.take()))
        item.user_properties += [(_PROPERTY, name) for name in names]
        unexpected = [name for name in names if not is_expected(name)]
        failed = isinstance(error, Exception)
        if unexpected and (not failed or is_cause(error)):
            reported = ", ".join(unexpected)
            pytest.fail(f"not on the simulated GPU, nor expected in {__name__}: {reported}", pytrace=False)
        if failed and is_cause(error):
            pytest.skip(f"not on the simulated GPU: {', '.join(names)}")
        if error is not None:
            if names:
                error.add_note(f"not on the simulated GPU: {', '.join(names)}")
            raise error
        return result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found: dict[str, Counter[str]] = {}
        for outcome, reports in terminalreporter.stats.items():
            for report in reports:
                if getattr(report, "when", None) == "call":
                    for key, name in report.user_properties:
                        if key == _PROPERTY:
                            found.setdefault(name, Counter())[outcome] += 1
        if not found:
            return
        terminalreporter.section("not on the simulated GPU")
        for name, counts in sorted(found.items()):
            reported = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
            terminalreporter.write_line(f"{name}: {reported}{'' if is_expected(name) else ' (not expected)'}")
