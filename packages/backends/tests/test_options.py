"""Options under their present names; deprecated ones are taken, and warn once."""

from __future__ import annotations

import warnings

import pytest

from framesmith_backends import CpuBackend, options
from framesmith_backends.cpu import CHOICES

OLD = "images"  # old-name


def checked(given: dict[str, object]) -> dict[str, object]:
    return options.checked_options(given, CpuBackend.options, CHOICES, "cpu")


@pytest.fixture(autouse=True)
def no_warning_yet() -> None:
    options._warn_once.cache_clear()


@pytest.mark.parametrize(("old", "present"), [("auto", "channels_last"), ("traced", "traced")])
def test_a_deprecated_option_has_the_present_name_and_value(old: str, present: str) -> None:
    with pytest.warns(FutureWarning, match="use 'layout'") as first:
        assert options.present_options({OLD: old, "matmul": "aten"}, CHOICES) == {"layout": present, "matmul": "aten"}
    assert len(first) == 1 and first[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert options.present_options({OLD: old}, CHOICES) == {"layout": present}


def test_a_deprecated_value_has_the_present_name() -> None:
    with pytest.warns(FutureWarning, match="value 'own' of option 'matmul' is deprecated: use 'native'"):  # old-name
        assert checked({"matmul": "own"})["matmul"] == "native"  # old-name


@pytest.mark.parametrize("given", [{OLD: "auto"}, {"matmul": "own"}])  # old-name
def test_another_backend_gets_its_own_options(given: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert options.present_options(given, given) == given
        choices = {name: (value,) for name, value in given.items()}
        assert options.checked_options(given, given, choices, "another") == given


def test_one_option_under_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="deprecated name of 'layout'"):
        options.present_options({OLD: "auto", "layout": "traced"}, CHOICES)


@pytest.mark.parametrize("value", ["never", ["auto"]])
def test_values_are_checked_under_the_present_name(value: object) -> None:
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"option 'layout' .* expected one of"):
        checked({OLD: value})
