"""Models met with one size after another: compiled twice at most, right at all sizes; generation with a cache.

A third of the models; long runs, `FRAMESMITH_LONG=1`, take all.
"""

from __future__ import annotations

import pytest
import torch

import framesmith
from benchmarks.suites.models.generation import BATCH, MODELS, PROMPT, STRATEGIES, TOKENS, WORDS, model_of
from integration_tests.harness.sweeps import LONG
from integration_tests.libraries.test_transformers import ARCHITECTURES, TRAINED, VOCABULARY, build, tensors

pytest.importorskip("transformers")

EACH = 1 if LONG else 3
#: Batch and sequence sizes, all different from those of `build`, and from the sizes within the models.
SIZES = ((3, 9), (5, 11), (6, 13))
#: Loops over the sequence in Python: each length is another program.
LOOPING = {"mamba"}


def batch_of(kind: str, size: int, length: int) -> dict[str, torch.Tensor]:
    """A batch of that many examples, of that length."""
    torch.manual_seed(size)
    if kind.startswith("image"):
        edge = 16 if kind == "image16" else 8
        return {"pixel_values": torch.randn(size, 3, edge, edge)}
    tokens = torch.randint(3, VOCABULARY, (size, length))
    found = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if kind == "pair":
        found["decoder_input_ids"] = torch.randint(3, VOCABULARY, (size, length - 2))
    return found


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


def counters() -> dict[str, int]:
    """Return the number of compilations so far; nothing has failed."""
    found = framesmith.stats()
    assert found["frames_failed"] == 0 and found["graphs"] > 0 and found["recompile_limits"] == 0, found
    return found


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", list(ARCHITECTURES)[::EACH])
def test_inference_at_three_sizes(name: str) -> None:
    model, first = build(name)
    model.eval()
    compiled = framesmith.compile(model)
    kind = ARCHITECTURES[name][3]
    with torch.no_grad():
        for batch in (first, *(batch_of(kind, *sizes) for sizes in SIZES)):
            expected = tensors(model(**batch))
            actual = compiled(**batch)
            for key, value in expected.items():
                torch.testing.assert_close(actual[key], value, rtol=1e-4, atol=1e-4)
    found = counters()
    if name not in LOOPING:
        assert found["recompilations"] <= found["frames_compiled"] - found["recompilations"], found


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", list(TRAINED)[::EACH])
def test_training_at_three_sizes(name: str) -> None:
    model, _ = build(name)
    model.eval()  # without dropout, whose numbers depend on what ran before
    compiled = framesmith.compile(model)
    kind = ARCHITECTURES[name][3]
    for sizes in ((2, 7), *SIZES):
        batch = batch_of(kind, *sizes)
        gradients = []
        for run in (model, compiled):
            model.zero_grad()
            loss = sum(value.float().square().mean() for value in tensors(run(**batch)).values())
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            gradients.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
        assert gradients[0].keys() == gradients[1].keys()
        for key, value in gradients[0].items():
            torch.testing.assert_close(
                gradients[1][key], value, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}"
            )
    found = counters()
    assert found["recompilations"] <= found["frames_compiled"] - found["recompilations"], found


GENERATED = [(name, strategy) for name in MODELS for strategy in STRATEGIES]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "strategy"), GENERATED[:: 1 if EACH == 1 else 4])
def test_generation_with_a_growing_cache(name: str, strategy: str) -> None:
    model = model_of(name)
    options = {"max_new_tokens": TOKENS, "pad_token_id": 0, "eos_token_id": None, **STRATEGIES[strategy]}
    prompt = torch.randint(2, WORDS, (BATCH, PROMPT))

    def generate() -> torch.Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            return model.generate(prompt, **options)

    expected = generate()
    model.forward = framesmith.compile(model.forward)
    for _ in range(2):
        assert torch.equal(generate(), expected)
    found = counters()
    assert found["recompilations"] <= 2 * (found["frames_compiled"] - found["recompilations"]), found
