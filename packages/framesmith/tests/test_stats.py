"""Counters."""

import threading

import pytest

from framesmith.stats import clear, count, stats


@pytest.fixture(autouse=True)
def fresh() -> None:
    clear()


def test_counts_since_the_last_clear() -> None:
    count("graphs")
    count("graphs", 2)
    assert stats()["graphs"] == 3
    clear()
    assert set(stats().values()) == {0}


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
