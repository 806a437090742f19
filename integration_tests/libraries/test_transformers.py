"""Transformers architectures with tiny random configs, compiled and eager: inference, then training steps."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith
from integration_tests.harness.captures import Capture

transformers = pytest.importorskip("transformers")

VOCABULARY = 64
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
LLAMA = {**TINY, "num_key_value_heads": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}

#: name -> (configuration class, model class, settings, kind of input)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertConfig", "BertModel", TINY, "text"),
    "roberta": ("RobertaConfig", "RobertaModel", {**TINY, "pad_token_id": 1}, "text"),
    "electra": ("ElectraConfig", "ElectraModel", {**TINY, "embedding_size": 16}, "text"),
    "albert": ("AlbertConfig", "AlbertModel", {**TINY, "embedding_size": 8}, "text"),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        "text",
    ),
    "gpt2": ("GPT2Config", "GPT2Model", GPT2, "text"),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXModel", TINY, "text"),
    "opt": (
        "OPTConfig",
        "OPTModel",
        {**TINY, "ffn_dim": 32, "word_embed_proj_dim": 16},
        "text",
    ),
    "llama": ("LlamaConfig", "LlamaModel", LLAMA, "text"),
    "mistral": ("MistralConfig", "MistralModel", {**LLAMA, "sliding_window": 8}, "text"),
    "qwen2": ("Qwen2Config", "Qwen2Model", LLAMA, "text"),
    "gemma": ("GemmaConfig", "GemmaModel", {**LLAMA, "head_dim": 8}, "text"),
    "phi": ("PhiConfig", "PhiModel", LLAMA, "text"),
    "falcon": ("FalconConfig", "FalconModel", {**TINY, "multi_query": True}, "text"),
    "bloom": (
        "BloomConfig",
        "BloomModel",
        {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2},
        "text",
    ),
    "mamba": (
        "MambaConfig",
        "MambaModel",
        {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        "text",
    ),
    "olmo": ("OlmoConfig", "OlmoModel", LLAMA, "text"),
    "stablelm": ("StableLmConfig", "StableLmModel", LLAMA, "text"),
    "mpnet": ("MPNetConfig", "MPNetModel", TINY, "text"),
    "t5": ("T5Config", "T5Model", T5, "pair"),
    "bart": ("BartConfig", "BartModel", BART, "pair"),
    "vit": ("ViTConfig", "ViTModel", IMAGE, "image"),
    "deit": ("DeiTConfig", "DeiTModel", IMAGE, "image"),
    "clip_vision": ("CLIPVisionConfig", "CLIPVisionModel", IMAGE, "image"),
    "convnext": (
        "ConvNextConfig",
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 16, "patch_size": 2},
        "image16",
    ),
}
TRAINED = ["bert", "roberta", "electra", "distilbert", "gpt2", "gpt_neox", "opt", "llama", "qwen2", "t5", "vit"]


def text() -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY, (2, 7))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def pair() -> dict[str, torch.Tensor]:
    return {**text(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5))}


INPUTS: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "text": text,
    "pair": pair,
    "image": lambda: {"pixel_values": torch.randn(2, 3, 8, 8)},
    "image16": lambda: {"pixel_values": torch.randn(2, 3, 16, 16)},
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A tiny model of this architecture and a batch for it, the same on every call."""
    config_name, model_name, settings, kind = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**settings)
    config.use_cache = False
    return getattr(transformers, model_name)(config), INPUTS[kind]()


def tensors(output: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_inference_equals_eager(name: str) -> None:
    model, batch = build(name)
    model.eval()
    compiled = framesmith.compile(model)
    with torch.no_grad():
        expected = tensors(model(**batch))
        assert expected
        for _ in range(2):
            actual = compiled(**batch)
            assert type(actual) is type(model(**batch))
            for key, value in expected.items():
                torch.testing.assert_close(actual[key], value, rtol=1e-4, atol=1e-4)
    counters = framesmith.stats()
    assert counters["frames_failed"] == 0 and counters["graphs"] > 0, counters


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", TRAINED)
def test_training_step_equals_eager(name: str) -> None:
    losses, gradients = zip(*(train(name, compiler) for compiler in (lambda m: m, framesmith.compile)), strict=True)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    assert gradients[0].keys() == gradients[1].keys()
    for key, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], value, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    counters = framesmith.stats()
    assert counters["frames_failed"] == 0 and counters["graphs"] > 0, counters


def train(
    name: str, compiler: Callable[[torch.nn.Module], torch.nn.Module]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Two optimisation steps in training mode, dropout included; the last loss and gradients."""
    model, batch = build(name)
    model.train()
    compiled = compiler(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(2):
        torch.manual_seed(1)
        optimizer.zero_grad()
        loss = sum(value.float().square().mean() for value in tensors(compiled(**batch)).values())
        loss.backward()
        optimizer.step()
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_launches_are_replayed(name: str) -> None:
    """Caches of keys and values are among the results: nothing may hold them but the user."""
    model, batch = build(name)
    model.config.use_cache = True
    model.eval()
    backend = Capture()
    compiled = framesmith.compile(model, backend=backend, fullgraph=True)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            for _ in range(8):
                output = compiled(**batch)
    finally:
        gc.enable()
    torch.testing.assert_close(output.last_hidden_state, model(**batch).last_hidden_state, rtol=1e-4, atol=1e-4)
    assert not backend.reasons
    assert [graphed.counts.replayed for graphed in backend.made] == [7]
