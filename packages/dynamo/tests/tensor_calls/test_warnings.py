"""Warnings of operations are reported at the program's line, by the first attempt to trace the call."""

import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from driver import compiled

ONE = torch.ones(1)


def copied(x):
    return torch.tensor(x) + 1  # AT-copied


def softmax(x):
    y = x * 2
    return F.softmax(y)  # AT-softmax


def helper(x):
    return torch.range(0, 3) + x  # AT-in_a_helper


def in_a_helper(x):
    return helper(x) * 2


def before_a_break(x):
    y = torch.tensor(x)  # AT-before_a_break
    print(end="")
    return y + x.cos()


def behind_two_breaks(x):
    print(end="")
    y = x + 1
    print(end="")
    return torch.range(0, 3) + y  # AT-behind_two_breaks


def into_another(x):
    out = torch.empty(2)
    torch.add(x, 1, out=out)  # AT-into_another
    return out


PROGRAMS = [copied, softmax, in_a_helper, before_a_break, behind_two_breaks, into_another]


def line_of(mark: str) -> int:
    with open(__file__) as file:
        [number] = [at for at, text in enumerate(file, 1) if text.rstrip().endswith(f"# {mark}")]
    return number


def ran_by_the_graph(record):
    return record.filename.startswith("<eval_with_key>")


def warned(fn, *args):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("default")  # once a line
        fn(*args)
    records = [record for record in records if not ran_by_the_graph(record)]
    return [(record.category, str(record.message), record.filename, record.lineno) for record in records]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_warned_as_in_eager_mode(fn):
    expected = warned(fn, ONE)
    assert [place[2:] for place in expected] == [(__file__, line_of(f"AT-{fn.__name__}"))]
    assert warned(compiled(fn), ONE) == expected


def test_an_error_that_was_a_warning():
    fn = compiled(copied)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="copy construct"):
            fn(ONE)


def test_filters_of_the_programs_module_apply():
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        compiled(copied)(ONE)
    assert all(map(ran_by_the_graph, records))
    assert __name__ in sys.modules
