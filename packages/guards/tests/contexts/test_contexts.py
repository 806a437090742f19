"""Contexts: ids, nesting per thread, checkpoints and their diffs, real stacks, patching."""

import threading
import traceback

import pytest
import torch

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
    detect_fake_mode,
    module_kind,
    new_fake_mode,
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


def test_user_stacks_are_noted_on_guards_and_errors():
    context = TracingContext()
    guard = Guard(LocalSource("x"), "NONE_MATCH")
    with tracing(context):
        with TracingContext.current_frame(traceback.FrameSummary("outer.py", 3, "outer", lookup_line=False)):
            TracingContext.set_current_loc(Location("inner.py", 7, "inner"))
            context.guards_context.add(guard)
            assert [entry.lineno for entry in TracingContext.extract_stack()] == [3, 7]
    assert [(entry.filename, entry.lineno) for entry in guard.user_stack] == [("outer.py", 3), ("inner.py", 7)]
    assert not TracingContext.extract_stack()
    with pytest.raises(ZeroDivisionError) as caught, tracing(context):
        with TracingContext.current_frame(traceback.FrameSummary("outer.py", 3, "outer", lookup_line=False)):
            TracingContext.set_current_loc(Location("inner.py", 8, "inner"))
            1 / 0
    assert [entry.lineno for entry in caught.value.real_stack] == [3, 8]
    assert not context.frames.entered and context.frames.location is None


def test_work_outside_any_frame_adds_no_stack():
    context = TracingContext()
    with pytest.raises(ZeroDivisionError) as caught, tracing(context):
        TracingContext.set_current_loc(Location("inner.py", 8, "inner"))
        with TracingContext.clear_frame():
            assert not TracingContext.extract_stack()
            1 / 0
    assert caught.value.real_stack is None


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
