"""The first file to run: a frame becomes a graph, its side effect happens once, a changed number compiles again."""

import torch

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter


def f(x, scale, log):
    for i in range(3):
        if i != scale:
            x = x * i + scale
    log[0] += 1
    return x.relu()


def test_capture_hit_and_recompile():
    events, logs = [], [[0], [0], [0]]
    calls = [(torch.ones(2), 1), (torch.ones(2), 1), (torch.ones(2), 2)]
    expected = [f(x, scale, [0]) for x, scale in calls]
    with frames.activated(FrameConverter(lambda module, inputs: module.forward, on_event=events.append)):
        results = [f(x, scale, log) for (x, scale), log in zip(calls, logs, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
    assert logs == [[1], [1], [1]]
    assert [event.kind for event in events if event.kind in ("graph", "recompile")] == ["graph", "recompile", "graph"]
    assert "L['scale']: expected 1, found 2" in [event.detail for event in events if event.kind == "recompile"]
