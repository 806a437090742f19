"""Warnings ignored in one thread, for a while, and nothing else changed; those of kernels, which come late."""

import threading
import warnings

import pytest
import torch

from framesmith_aten.checks.ignored_warnings import quietly, without_warnings


def warn(text):
    warnings.warn(text, stacklevel=1)
    return text


def warned(act):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        act()
    return [str(record.message) for record in records]


def test_warnings_are_ignored_for_a_while():
    def act():
        warn("before")
        with without_warnings():
            warn("inside")
        warn("after")

    assert warned(act) == ["before", "after"]


def test_errors_of_warnings_are_ignored_too():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_warnings():
            assert warn("inside") == "inside"
        with pytest.raises(UserWarning):
            warn("after")


def test_only_what_these_modules_warn_of():
    def act():
        for modules in ("elsewhere.", __name__[:3]):
            with without_warnings(modules):
                warn(modules)

    assert warned(act) == ["elsewhere."]


def test_other_threads_are_warned():
    def act():
        with without_warnings():
            thread = threading.Thread(target=warn, args=("elsewhere",))
            thread.start()
            thread.join()

    assert warned(act) == ["elsewhere"]


def test_filters_are_as_before():
    before = list(warnings.filters)
    with without_warnings(), warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = list(warnings.filters)
    assert warnings.filters == before
    with warnings.catch_warnings():
        warnings.filters[:] = inside  # a copy that someone took goes on as if nothing had been ignored
        with pytest.raises(UserWarning):
            warn("a")


def test_a_warning_shown_once_is_not_shown_again():
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("once")
            with without_warnings():
                warn("never")
    assert len(records) == 1


def deviation():
    return torch.ops.aten.std.correction(torch.ones(2), [0], correction=3)


class Calls(torch.Tensor):
    """A tensor whose methods, called from Python, run what they are given."""

    run = staticmethod(deviation)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return cls.run()


def test_what_kernels_warn_of_within_another_method():
    outer = torch.ones(1).as_subclass(Calls)
    assert any("degrees of freedom" in text for text in warned(outer.abs))

    class Quiet(Calls):
        run = staticmethod(lambda: quietly(deviation))

    quiet = outer.as_subclass(Quiet)
    assert warned(quiet.abs) == []
    assert bool(quietly(deviation).isnan()) and quietly(lambda: 3) == 3


def test_errors_pass():
    with pytest.raises(KeyError, match="own"):
        quietly(lambda: {}["own"])
