"""The first thing to run: one replaced call, one skipped, one let through."""

import framesmith_frames as frames


def original(x):
    return x + 1


def replacement(x):
    return x + 1000


def callback(frame):
    if frame.code is original.__code__:
        return frames.Entry(lambda args, function: args[0] > 0, replacement.__code__)
    return frames.SKIP("other")


def test_one_replaced_call():
    with frames.activated(callback):
        results = original(1), original(2), original(-1)
    assert results == (1001, 1002, 0)
    assert original(1) == 2
    counts = frames.stats(original)
    assert (counts.hits, counts.misses, counts.rejected) == (1, 2, 1)


def test_the_readme_example_runs():
    from pathlib import Path

    readme = Path(__file__).parents[1] / "README.md"
    for example in readme.read_text().split("```python\n")[1:]:
        exec(compile(example.split("```")[0], str(readme), "exec"), {"__name__": "readme"})
