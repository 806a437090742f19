"""Transformers with gradient checkpointing: whole training steps, one graph for the model, layers' inputs saved."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import framesmith

transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH, LAYERS, ROWS, LENGTH = 64, 32, 2, 2, 16
COMMON = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
#: name -> (configuration, model, settings)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_positions": LENGTH},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**COMMON, "intermediate_size": 64, "num_key_value_heads": 1}),
    "bert": ("BertConfig", "BertForMaskedLM", {**COMMON, "intermediate_size": 64}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": LAYERS,
            "num_heads": 2,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def build(name: str, reentrant: bool | None) -> Any:
    config, model, settings = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**settings, use_cache=False)).train()
    if reentrant is not None:
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return made


def trained(model: Any, call: Any, steps: int = 3) -> list[Any]:
    """Whole steps with AdamW: losses, gradients, random numbers afterwards, parameters at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    found: list[Any] = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        found += [loss.detach(), torch.rand(2)]
        found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return [*found, *(p.detach().clone() for p in model.parameters())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_whole_training_steps(name: str, reentrant: bool) -> None:
    model = build(name, reentrant)
    other = copy.deepcopy(model)
    found = trained(other, framesmith.compile(other, fullgraph=True))
    torch.testing.assert_close(found, trained(model, model), rtol=1e-3, atol=1e-4)
    assert framesmith.stats()["graphs"] == 1


@pytest.mark.parametrize("name", [name for name in MODELS if name != "t5"])  # T5's layers have more inputs
def test_layers_save_their_inputs(name: str) -> None:
    """Besides parameters: the input of each layer, masks of dropout, and what embeddings and the loss save."""
    counts = {}
    for reentrant in (None, False):
        model = build(name, reentrant)
        own = {p.data_ptr() for p in model.parameters()}
        tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH))
        packed: list[torch.Tensor] = []
        with saved_tensors_hooks(lambda saved, packed=packed: packed.append(saved) or saved, lambda kept: kept):
            framesmith.compile(model, fullgraph=True)(input_ids=tokens, labels=tokens).loss.backward()
        values = [one for one in packed if one.dtype is torch.float32 and one.data_ptr() not in own]
        counts[reentrant] = sum(one.numel() for one in values)
        framesmith.reset()
    activation = ROWS * LENGTH * WIDTH
    loss = 3 * ROWS * LENGTH * VOCABULARY
    assert counts[False] <= (LAYERS + 5) * activation + loss, counts
    assert counts[None] > counts[False] + LAYERS * 3 * activation, counts
