"""Calls made in the user's name: warnings are shown at the line, and recorded in the module."""

import sys
import warnings

import pytest

from framesmith_guards import Location, called_from

PLACE = Location("/program.py", 7, "Model.forward")


def warn(text, *, stacklevel=1):
    warnings.warn(text, stacklevel=stacklevel)
    return text


def warned(act):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        act()
    return [(str(record.message), record.filename, record.lineno) for record in records]


def test_the_caller_is_at_the_line():
    call = called_from(PLACE, {"__name__": "program"}, warn)
    assert warned(lambda: call("a", stacklevel=2)) == [("a", "/program.py", 7)]

    def where():
        frame = sys._getframe(1)
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, frame.f_code.co_qualname

    assert called_from(PLACE, {}, where)() == ("/program.py", 7, "forward", "Model.forward")


def test_globals_without_builtins_have_those_of_python():
    def found():
        return sys._getframe(1).f_globals["__builtins__"].__import__("math").pi

    globals = {}
    assert called_from(PLACE, globals, found)() > 3
    assert "__builtins__" not in globals


def test_what_is_warned_of_is_noted_in_the_globals():
    globals = {"__name__": "program"}
    call = called_from(PLACE, globals, warn)
    with pytest.warns(UserWarning):
        call("a", stacklevel=2)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("default")
        call("b", stacklevel=2)
        call("b", stacklevel=2)
    assert len(records) == 1 and "__warningregistry__" in globals


def test_filters_for_the_module_apply():
    call = called_from(PLACE, {"__name__": "program.part"}, warn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module=r"program\.")
        with pytest.raises(UserWarning, match="a"):
            call("a", stacklevel=2)
