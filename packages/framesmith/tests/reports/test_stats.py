"""Counters."""

import threading

import pytest

from framesmith.reports.stats import clear, count, count_break, stats


@pytest.fixture(autouse=True)
def fresh() -> None:
    clear()


def test_counts_since_the_last_clear() -> None:
    count("graphs")
    count("graphs", 2)
    assert stats()["graphs"] == 3
    clear()
    assert set(stats().values()) == {0}


def test_a_break_counts_once_however_often_it_is_met() -> None:
    assert [count_break(site) for site in (("print", 1), ("print", 2), ("print", 1))] == [True, True, False]
    assert (stats()["breaks"], stats()["breaks_met"]) == (2, 3)
    clear()
    assert count_break(("print", 1)) and stats()["breaks_met"] == 1


def test_an_unknown_counter_is_an_error() -> None:
    with pytest.raises(AttributeError):
        count("grahps")


def test_counting_from_many_threads() -> None:
    threads = [threading.Thread(target=lambda: [count("breaks") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats()["breaks"] == 2000
