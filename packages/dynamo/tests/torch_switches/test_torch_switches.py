"""torch's switches: read where torch stores them; a missing name is logged once."""

import functools
import logging
import subprocess
import sys

import pytest
import torch
import torch._dynamo
from torch._dynamo import decorators as torch_decorators
from torch._dynamo import eval_frame, trace_rules

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter, innermost
from framesmith_dynamo.torch_switches import decorators, resets, settings, stances, torch_names


def f(x):
    return x.sin() + 1


def run_python(command):
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_of_torch_compile_is_imported_to_hear_it():
    command = (
        "import sys, torch, framesmith_frames as frames\n"
        "from framesmith_dynamo import FrameConverter\n"
        "from framesmith_dynamo.torch_switches import resets\n"
        "converter = FrameConverter(lambda module, inputs: module.forward)\n"
        "f = lambda x: x.sin()\n"
        "with frames.activated(converter): f(torch.ones(2))\n"
        "assert len(frames.entries(f)) == 1\n"
        "print('torch._dynamo' in sys.modules, resets.FINDER in sys.meta_path)\n"
        "import torch._dynamo\n"
        "print(resets.FINDER in sys.meta_path, type(torch._dynamo.eval_frame.__loader__).__name__)\n"
        "torch._dynamo.reset()\n"
        "print(len(frames.entries(f)))\n"
        "with torch.compiler.set_stance('force_eager'), frames.activated(converter): f(torch.ones(2))\n"
        "print(len(frames.entries(f)))\n"
    )
    assert run_python(command).split("\n") == ["False True", "False SourceFileLoader", "0", "0"]


@pytest.fixture
def logged(caplog, monkeypatch):
    monkeypatch.setattr(torch_names, "_missing", set())
    monkeypatch.setattr(logging.getLogger("framesmith"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="framesmith.torch"):
        yield caplog


ALL_NAMES = [value for value in vars(torch_names).values() if isinstance(value, torch_names.TorchName)]


@pytest.mark.parametrize("place", ALL_NAMES, ids=lambda place: place.name)
def test_what_torch_keeps_elsewhere_is_logged_once_and_the_rest_works(place, logged, monkeypatch):
    disabled = torch_decorators.disable
    monkeypatch.delattr(f"{place.module}.{place.name}")
    resets.connect(eval_frame)
    converter = FrameConverter(lambda module, inputs: module.forward, strict=True)

    def h(x):
        return x + torch.compiler.is_compiling()

    alone = place.module == torch_names.EVAL_FRAME  # torch's own wrappers need what is taken away there
    h = (lambda x: x) if alone else disabled(h)

    def g(x):
        return h(x.sin()) + 1

    with frames.activated(converter):
        for _ in range(2):
            assert torch.equal(g(torch.ones(2)), torch.ones(2).sin() + 1)
    assert frames.entries(g)
    for read in (decorators.is_allowed, decorators.is_disallowed, decorators.is_leaf, decorators.substitute):
        assert not read(f)
    assert stances.stance() == "default"
    assert torch_names.read(place, "nothing") == "nothing"
    messages = [record.getMessage() for record in logged.records if place.name in record.getMessage()]
    assert len(messages) == 1 and place.lost in messages[0]
    frames.reset(g)


def test_every_place_is_there():
    assert all(hasattr(sys.modules[place.module], place.name) for place in ALL_NAMES)


def test_marks_that_functools_has_copied_say_nothing():
    disabled = torch.compiler.disable(f, reason="why")

    @functools.wraps(disabled)
    def around(x):
        return disabled(x)

    assert decorators.disabled(disabled) == decorators.Disabled("disabled with torch.compiler.disable: why", True, f)
    assert decorators.disabled(around) is None and decorators.disabled(f) is None
    assert innermost(disabled) is f and innermost(around) is around and innermost(f) is f
    once = torch.compiler.disable(f, recursive=False)
    assert not decorators.disabled(once).calls_too and innermost(once) is f
    module = torch.nn.Linear(2, 2)
    assert innermost(torch.compiler.disable(module)) is module
    assert innermost(torch.compile(f, backend="eager")) is f
    assert innermost(torch.compile(module, backend="eager")) is module


def test_marks_of_functions_in_torchs_tables():
    def own(x):
        return x

    torch.compiler.allow_in_graph(own)
    nonstrict = torch._dynamo.nonstrict_trace(f)
    assert decorators.is_allowed(own) and decorators.is_allowed(nonstrict) and not decorators.is_allowed(f)
    assert decorators.is_disallowed(torch._dynamo.graph_break) and not decorators.is_disallowed(own)
    assert id(own) in trace_rules._allowed_callable_ids
    assert decorators.is_forbidden(torch.compiler.set_stance) and decorators.is_forbidden(torch._dynamo.mark_dynamic)


def test_settings_that_are_set_back_are_no_news():
    config = torch._dynamo.config
    assert "verbose" not in [*settings.changed_in(torch_names.CONFIG)]
    with config.patch(verbose=not config.verbose):
        assert "verbose" in [*settings.changed_in(torch_names.CONFIG)]
    assert "verbose" not in [*settings.changed_in(torch_names.CONFIG)]
    with config.patch(recompile_limit=3):
        assert settings.recompile_limit(None) == 3 and settings.recompile_limit(5) == 5
    with config.patch(accumulated_recompile_limit=2):
        assert settings.recompile_limit(None) == 2 and settings.recompile_limit(5) == 2
    assert all(hasattr(config, name) for name in settings.HONOURED)


def test_a_call_that_runs_eagerly_for_once_looks_for_no_settings(monkeypatch):
    looked = []
    monkeypatch.setattr(settings, "warn_of_ignored_settings", lambda: looked.append(1))
    converter = FrameConverter(lambda module, inputs: module.forward)
    with frames.activated(converter):
        torch.utils.checkpoint.checkpoint(f, torch.ones(3), use_reentrant=False)
        assert not looked
        f(torch.ones(3))
    assert looked == [1] and frames.entries(f)
    frames.reset(f)


def test_a_converter_alone_warns_that_it_chooses_no_backend(monkeypatch):
    monkeypatch.setattr(settings, "_warned", set())
    converter = FrameConverter(lambda module, inputs: module.forward)
    with torch.compiler.set_stance("default", force_backend="eager"):
        with pytest.warns(settings.SwitchWarning, match="force_backend"), frames.activated(converter):
            f(torch.ones(3))
    assert frames.entries(f)
    frames.reset(f)


def test_what_torch_sets_by_a_switch_that_counts_is_no_setting_of_the_programs(monkeypatch):
    monkeypatch.setattr(settings, "_warned", set())
    torch.use_deterministic_algorithms(True)
    try:
        settings.warn_of_ignored_settings()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not settings._warned
    with torch._inductor.config.patch(deterministic=True), pytest.warns(settings.SwitchWarning, match="deterministic"):
        settings.warn_of_ignored_settings()
