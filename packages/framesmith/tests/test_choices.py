"""Messages at the door."""

import pytest

from framesmith.choices import check_bool, check_choice, nearest
from framesmith.config import check_options
from framesmith_backends import EagerBackend


def test_nearest_names_a_close_word_only() -> None:
    assert nearest("maxautotune", ["default", "max-autotune"]) == "; did you mean 'max-autotune'?"
    assert nearest("qqq", ["default"]) == ""


def test_check_choice() -> None:
    assert check_choice("mode", "a", ["b", "a"]) == "a"
    with pytest.raises(ValueError, match="unknown mode 'c'; expected one of 'a', 'b'"):
        check_choice("mode", "c", ["b", "a"])
    with pytest.raises(TypeError, match="mode must be a string, one of 'a'; got int"):
        check_choice("mode", 1, ["a"])


def test_check_bool_takes_no_substitutes() -> None:
    assert check_bool("strict", True) is True
    for other in (1, 0, None, "yes"):
        with pytest.raises(TypeError, match="strict must be True or False"):
            check_bool("strict", other)


class Images(EagerBackend):
    options = {"images": "all", "matmul": "own"}  # old-name


def test_another_backends_options_keep_their_names() -> None:
    assert check_options(Images(), Images.options) == Images.options
    with pytest.raises(ValueError, match="unknown option 'layout'"):
        check_options(Images(), {"layout": "traced"})
