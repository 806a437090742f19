"""Topics of FRAMESMITH_LOGS and set_logs."""

import logging

import pytest

from framesmith import FramesmithWarning, set_logs
from framesmith.reports.logs import TOPICS, logger, parse, set_logs_from_environment


@pytest.fixture(autouse=True)
def off():
    yield
    set_logs()


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {}),
        ("recompiles, breaks", {"recompiles": logging.INFO, "breaks": logging.INFO}),
        ("+guards", {"guards": logging.DEBUG}),
        ("-aot", {"aot": logging.ERROR}),
        ("all,-perf", {**dict.fromkeys(TOPICS, logging.INFO), "perf": logging.ERROR}),
    ],
)
def test_words(text, levels):
    assert parse(text) == levels


def test_an_unknown_topic_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'guards'"):
        set_logs("+guard")
    with pytest.raises(ValueError, match="did you mean 'breaks'"):
        set_logs(break_=True)
    with pytest.raises(TypeError, match="log level"):
        set_logs(breaks="loud")


def test_levels_by_name_and_off_again():
    set_logs("graphs", breaks="debug", perf=False, plan=15)
    levels = {topic: logger(topic).getEffectiveLevel() for topic in ("graphs", "breaks", "perf", "plan")}
    assert levels == {"graphs": logging.INFO, "breaks": logging.DEBUG, "perf": logging.ERROR, "plan": 15}
    set_logs()
    assert not logger("graphs").isEnabledFor(logging.INFO) and not logging.getLogger("framesmith").handlers


def test_the_environment(monkeypatch):
    monkeypatch.setenv("FRAMESMITH_LOGS", "+aot")
    set_logs_from_environment()
    assert logger("aot").isEnabledFor(logging.DEBUG)
    monkeypatch.setenv("FRAMESMITH_LOGS", "kernel")
    with pytest.warns(FramesmithWarning, match="did you mean 'kernels'"):
        set_logs_from_environment()
