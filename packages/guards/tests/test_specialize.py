"""`specialize`: one run per set of guarded properties; the README's examples run."""

import gc
import re
import weakref
from pathlib import Path

import pytest
import torch

from framesmith_guards import GuardError, specialize


def counted(**options):
    calls = []

    @specialize(**options)
    def work(x, *rest, scale=1, **more):
        """Work."""
        calls.append(1)
        return len(calls)

    return work


def test_metadata_constants_and_identity():
    work = counted()
    layer = torch.nn.Linear(2, 2)
    assert work(torch.ones(2), 1, (2, [3]), layer=layer) == 1
    assert work(torch.zeros(2), 1, (2, [3]), layer=layer) == 1
    assert work(torch.ones(3), 1, (2, [3]), layer=layer) == 2
    assert work(torch.ones(2), 1, (2, [4]), layer=layer) == 3
    assert work(torch.ones(2), 1, (2, [3]), layer=torch.nn.Linear(2, 2)) == 4
    assert work(torch.ones(2), 1, (2, [3]), layer=layer, scale=1) == 1
    assert work(torch.ones(2), 1, (2, [3]), layer=layer, scale=True) == 5
    assert work([torch.ones(1), {"a": layer}]) == 6 == work([torch.zeros(1), {"a": layer}])
    assert work([torch.ones(1), {"b": layer}]) == 7
    assert work.__doc__ == "Work." and work.__name__ == "work"


def test_explanations_and_limits():
    work = counted(limit=2)
    assert work.explain(torch.ones(2)) == "nothing is remembered"
    work(torch.ones(2))
    assert work.explain(torch.zeros(2)) is None
    assert work.explain(torch.ones(3)) == "L['x']: expected sizes (2,), found (3,)"
    work(torch.ones(3))
    work(torch.ones(4))
    assert len(work.entries) == 2 and work(torch.ones(2)) == 4
    work.clear()
    assert work.entries == ()


def test_state():
    work = counted(state=True)
    assert work(1) == 1 == work(1)
    with torch.no_grad():
        assert work(1) == 2


def test_objects_are_not_kept_alive():
    work = counted()
    layer = torch.nn.Linear(2, 2)
    work(layer)
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None
    work(1)
    assert len(work.entries) == 1


def test_annotations_are_not_evaluated():
    def annotate(format):
        raise AssertionError

    def scaled(x, *rest, by=2):
        return by * x

    scaled.__annotate__ = annotate
    again = specialize(scaled)
    assert again(3) == 6 and again(3, by=4) == 12 and again(x=3) == 6
    assert len(again.entries) == 2


def test_bad_uses():
    with pytest.raises(GuardError, match="a Python function"):
        specialize(len)
    with pytest.raises(GuardError, match="positive int"):
        specialize(limit=0)(test_state)
    with pytest.raises(TypeError):
        counted()()


def test_readme_examples(capsys):
    readme = Path(__file__).parents[1] / "README.md"
    if not readme.exists():
        pytest.skip("the README is not beside the tests")
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines()[:4] == [
        "working it out",
        "2048",
        "2048",
        "L['x']: expected sizes (8, 4), found (9, 4)",
    ]
