"""Contexts: ids, nesting per thread, checkpoints and their diffs, real stacks, patching."""

import threading
import traceback

import pytest
import torch

import framesmith_guards
from framesmith_guards import (
    CompileContext,
    CompileId,
    GlobalContext,
    Guard,
    GuardError,
    GuardsContext,
    LocalSource,
    Location,
    ModuleContext,
    ModuleKind,
    TraceId,
    TracingContext,
    compile_context,
    current_location,
    detect_fake_mode,
    located,
    location_of,
    module_kind,
    new_fake_mode,
    note_location,
    tracing,
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


def test_guards_checkpoints():
    context = GuardsContext()

    def guard(value):
        return Guard(LocalSource("x"), "EQUALS_MATCH", value)

    context.add(guard(1))
    before = context.checkpoint()
    context.add(guard(2))
    with context.suspended():
        assert not context.add(guard(3))
    after = context.checkpoint()
    assert after.diff(before) == {guard(2)} and before.diff(after) is None and before != after
    context.restore(before)
    assert list(context.guards) == [guard(1)] and context.checkpoint() == before


def test_module_checkpoints():
    context = ModuleContext()
    context.modules["a"] = torch.nn.ReLU()
    before = context.checkpoint()
    context.modules["b"] = torch.nn.ReLU()
    assert context.checkpoint().diff(before) == {"b"}
    context.modules["a"] = torch.nn.ReLU()
    assert context.checkpoint().diff(before) == {"a", "b"}
    context.restore(before)
    assert context.checkpoint() == before


def test_global_state_is_restored():
    context = GlobalContext()
    assert context.changed() is None
    before = context.checkpoint()
    with context.preserved():
        torch._C._set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert context.changed() == {"grad_enabled", "default_dtype", "autocast_enabled[cpu]", "deterministic"}
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32
    assert context.checkpoint() == before


def test_locations_are_noted_on_guards_and_errors():
    place = Location("inner.py", 7, "inner", Location("outer.py", 3, "outer"))
    context = TracingContext(locate=lambda: place)
    guard = Guard(LocalSource("x"), "NONE_MATCH")
    with tracing(context):
        context.guards_context.add(guard)
        assert current_location() is place
    assert guard.location is place and current_location() is None
    assert [(entry.filename, entry.lineno) for entry in place.summary()] == [("outer.py", 3), ("inner.py", 7)]
    with pytest.raises(ZeroDivisionError) as caught, tracing(context):
        1 / 0
    assert location_of(caught.value) is place
    note_location(caught.value, Location("other.py", 1, "other"))
    assert location_of(caught.value) is place  # the first is the innermost


def test_the_text_of_a_location_is_as_in_tracebacks():
    def here():
        raise KeyError

    with pytest.raises(KeyError) as caught:
        here()
    entries = traceback.extract_tb(caught.value.__traceback__)
    place = None
    for entry in entries:
        place = Location(entry.filename, entry.lineno, entry.name, place)
    printed = "".join(line for line in traceback.format_list(entries)).replace("\n    ~~", "\n")
    told = [line for line in printed.splitlines() if line.strip("~^ ")]
    assert place.stack_trace.splitlines() == told
    assert str(place).endswith("in here: raise KeyError")


def test_the_users_line_is_the_innermost_outside_of_torch():
    user = Location(__file__, 5, "f")
    assert Location(torch.nn.functional.__file__, 9, "relu", user).in_user_code is user
    assert Location(framesmith_guards.__file__, 9, "x", user).in_user_code is user
    alone = Location(torch.__file__, 9, "f")
    assert alone.in_user_code is alone


def test_locations_are_per_thread():
    place, seen = Location("a.py", 1, "f"), []
    with located(lambda: place):
        thread = threading.Thread(target=lambda: seen.append(current_location()))
        thread.start()
        thread.join()
        with located(None):
            seen.append(current_location())
        seen.append(current_location())
    assert seen == [None, None, place]


def test_debug_stacks():
    context = GuardsContext(debug_stacks=True)
    guard = Guard(LocalSource("x"), "NONE_MATCH")
    context.add(guard)
    assert any(entry.name == "test_debug_stacks" for entry in guard.stack)


def test_tracing_nests_and_patches():
    outer, inner = TracingContext(), TracingContext()
    with tracing(outer):
        with tracing(inner):
            assert TracingContext.get() is inner
            with tracing(None):
                assert TracingContext.try_get() is None
        with TracingContext.patch(notes={"a": 1}):
            assert outer.notes == {"a": 1}
        assert outer.notes == {}
        with pytest.raises(GuardError, match="did you mean 'output_strides'"):
            with TracingContext.patch(output_stride=[]):
                pass
        with TracingContext.report_output_strides() as strides:
            TracingContext.get().output_strides.append((2, 1))
        assert strides == [(2, 1)] and outer.output_strides is None
        outer.traced_code.append(test_debug_stacks.__code__)
        assert TracingContext.get_traced_code() == [test_debug_stacks.__code__]
    with TracingContext.report_output_strides() as strides:
        assert strides is None
    assert TracingContext.get_traced_code() is None
    with pytest.raises(RuntimeError, match=r"tracing\(\)"):
        TracingContext.get()


def test_tensor_contexts_do_not_keep_tensors():
    context, x = TracingContext(), torch.ones(2)
    context.tensor_contexts[x] = "symbolic"
    assert context.tensor_context(x) == "symbolic" and context.tensor_context(torch.ones(2)) is None
    del x
    assert len(context.tensor_contexts) == 0


def test_the_fake_mode_in_use():
    one, other = new_fake_mode(), new_fake_mode()
    value = one.from_tensor(torch.ones(2))
    assert detect_fake_mode() is None and detect_fake_mode([value]) is one
    with other:
        assert detect_fake_mode() is other
        with pytest.raises(GuardError, match="another fake mode"):
            detect_fake_mode(value)
    with tracing(TracingContext(other)):
        assert detect_fake_mode(value) is other


def test_kinds_of_modules():
    class Mine(torch.nn.Module):
        pass

    assert module_kind(3) is ModuleKind.NONE
    assert module_kind(torch.nn.Linear(1, 1)) is ModuleKind.BUILTIN
    assert module_kind(Mine()) is ModuleKind.USER
