"""Contexts: ids, nesting per thread, locations in the user's program."""

import linecache
import threading
import traceback

import pytest
import torch

import framesmith_guards
from framesmith_guards import (
    CompileContext,
    CompileId,
    Guard,
    GuardsSet,
    LocalSource,
    Location,
    TraceId,
    compile_context,
    current_location,
    lines_forgotten,
    located,
    location_of,
    note_location,
)


@pytest.mark.parametrize(
    ("made", "printed"),
    [
        (CompileId(3, 0), "3/0"),
        (CompileId(backward=1), "!1"),
        (CompileId(3, 2, backward=1), "!1/3/2"),
    ],
)
def test_compile_ids_print_and_parse(made, printed):
    assert str(made) == printed and CompileId.parse(printed) == made
    assert str(TraceId(made)) == printed and str(TraceId(made, 2)) == f"{printed}_2"


@pytest.mark.parametrize("text", ["", "3", "3/", "/0", "!", "!1/", "a/b", "!1/3", "1/2/3"])
def test_what_is_no_compile_id(text):
    with pytest.raises(ValueError):
        CompileId.parse(text)


def test_half_a_compile_id():
    with pytest.raises(ValueError, match="together"):
        CompileId(3)
    with pytest.raises(ValueError, match="names a frame"):
        CompileId()


def test_compile_contexts_nest_and_are_per_thread():
    outer, inner = CompileContext(CompileId(0, 0)), CompileContext(CompileId(1, 0))
    seen = []
    with compile_context(outer):
        with compile_context(inner):
            inner.attempt += 1
            assert CompileContext.get() is inner and str(CompileContext.current_trace_id()) == "1/0_1"
            thread = threading.Thread(target=lambda: seen.append(CompileContext.try_get()))
            thread.start()
            thread.join()
        assert CompileContext.current_compile_id() == CompileId(0, 0)
    assert seen == [None] and CompileContext.current_trace_id() is None
    with pytest.raises(RuntimeError, match="compile_context"):
        CompileContext.get()
    with pytest.raises(TypeError, match="CompileId or None"):
        CompileContext("3/0")


def test_locations_are_noted_on_guards_and_errors():
    location = Location("inner.py", 7, "inner", Location("outer.py", 3, "outer"))
    guards, guard = GuardsSet(), Guard(LocalSource("x"), "NONE_MATCH")
    with located(lambda: location):
        guards.add(guard)
        assert current_location() is location
    assert guard.location is location and current_location() is None
    assert [(entry.filename, entry.lineno) for entry in location.summary()] == [("outer.py", 3), ("inner.py", 7)]
    with pytest.raises(ZeroDivisionError) as caught, located(lambda: location):
        1 / 0
    assert location_of(caught.value) is location
    note_location(caught.value, Location("other.py", 1, "other"))
    assert location_of(caught.value) is location  # the first is the innermost


def test_the_text_of_a_location_is_as_in_tracebacks():
    def here():
        raise KeyError

    with pytest.raises(KeyError) as caught:
        here()
    entries = traceback.extract_tb(caught.value.__traceback__)
    location = None
    for entry in entries:
        location = Location(entry.filename, entry.lineno, entry.name, location)
    printed = "".join(line for line in traceback.format_list(entries)).replace("\n    ~~", "\n")
    lines = [line for line in printed.splitlines() if line.strip("~^ ")]
    assert location.stack_trace.splitlines() == lines
    assert str(location).endswith("in here: raise KeyError")
    known: dict[Location, str] = {}
    assert location.stack_text(known) == location.stack_trace
    assert [*known] == [*location.chain()][::-1]


def test_files_read_for_texts_are_let_go_and_nothing_else(tmp_path):
    file, before = tmp_path / "some.py", tmp_path / "before.py"
    for one in (file, before):
        one.write_text("first\nsecond\n")
    assert linecache.getline(str(before), 1) == "first\n"
    invented = "/tmp/somebody's/cell.py"
    with lines_forgotten():
        assert Location(str(file), 2, "f").line == "second"
        linecache.cache[invented] = (5, None, ["text\n"], invented)
    try:
        assert str(file) not in linecache.cache
        assert str(before) in linecache.cache
        assert Location(invented, 1, "g").line == "text"
    finally:
        del linecache.cache[invented]


def test_the_users_line_is_the_innermost_outside_of_torch():
    user = Location(__file__, 5, "f")
    assert Location(torch.nn.functional.__file__, 9, "relu", user).in_user_code is user
    assert Location(framesmith_guards.__file__, 9, "x", user).in_user_code is user
    alone = Location(torch.__file__, 9, "f")
    assert alone.in_user_code is alone


def test_locations_are_per_thread():
    location, seen = Location("a.py", 1, "f"), []
    with located(lambda: location):
        thread = threading.Thread(target=lambda: seen.append(current_location()))
        thread.start()
        thread.join()
        with located(None):
            seen.append(current_location())
        seen.append(current_location())
    assert seen == [None, None, location]


def test_debug_stacks():
    guards, guard = GuardsSet(debug_stacks=True), Guard(LocalSource("x"), "NONE_MATCH")
    guards.add(guard)
    assert any(entry.name == "test_debug_stacks" for entry in guard.stack)
