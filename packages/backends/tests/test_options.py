"""Options under their present names; deprecated ones are taken, and warn once."""

from __future__ import annotations

import warnings

import pytest

from framesmith_backends import CpuBackend, options

OLD = "images"  # old-name


@pytest.fixture(autouse=True)
def no_warning_yet() -> None:
    options._warn_once.cache_clear()


@pytest.mark.parametrize(("old", "present"), [("auto", "channels_last"), ("traced", "traced")])
def test_a_deprecated_option_has_the_present_name_and_value(old: str, present: str) -> None:
    with pytest.warns(FutureWarning, match="use 'layout'") as first:
        assert options.present_options({OLD: old, "matmul": "aten"}) == {"layout": present, "matmul": "aten"}
    assert len(first) == 1 and first[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert options.present_options({OLD: old}) == {"layout": present}


def test_a_deprecated_value_has_the_present_name() -> None:
    with pytest.warns(FutureWarning, match="value 'own' of option 'matmul' is deprecated: use 'native'"):  # old-name
        assert options.present_options({"matmul": "own"}) == {"matmul": "native"}  # old-name


def test_one_option_under_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="deprecated name of 'layout'"):
        options.present_options({OLD: "auto", "layout": "traced"})


def test_values_are_checked_under_the_present_name() -> None:
    backend = CpuBackend()
    choices = {"layout": ("channels_last", "traced")}
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"option 'layout' .* expected one of"):
        options.checked_options({OLD: "never"}, backend.options, choices, backend.name)
