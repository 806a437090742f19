"""Transformers with activation checkpoints, each layer one, in whole training steps: forward, backward, AdamW.

Six layers of width 256 with random weights, eight sentences of 128 words; dropout as in the models' own configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.harness.candidates import wrap

WIDTH, LAYERS, HEADS, WORDS, BATCH, LENGTH = 256, 6, 4, 1000, 8, 128
Built = tuple[nn.Module, dict[str, torch.Tensor]]
STACK: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
}  # fmt: skip


def sentences() -> dict[str, torch.Tensor]:
    """Random words, which are their own labels."""
    words = torch.randint(1, WORDS, (BATCH, LENGTH))
    return {"input_ids": words, "labels": words}


def gpt2() -> Built:
    """Dropout 0.1 everywhere, attention's probabilities too."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS, n_positions=LENGTH)
    return GPT2LMHeadModel(config), sentences()


def llama() -> Built:
    """No dropout; half as many heads of keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**STACK, num_key_value_heads=2, vocab_size=WORDS)), sentences()


def bert() -> Built:
    """Dropout 0.1 everywhere, and an attention mask."""
    from transformers import BertConfig, BertForMaskedLM

    given = sentences()
    model = BertForMaskedLM(BertConfig(**STACK, vocab_size=WORDS))
    return model, {**given, "attention_mask": torch.ones_like(given["input_ids"])}


def t5() -> Built:
    """An encoder and a decoder; dropout 0.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS, vocab_size=WORDS)
    config.decoder_start_token_id = config.pad_token_id = 0
    return T5ForConditionalGeneration(config), sentences()


def vit() -> Built:
    """Sixteen rows of 65 patches, of 128 x 128 pixels; no dropout.

    The problem is named: a model that finds it out notes it at its first call, for which all compilers compile again.
    """
    from transformers import ViTConfig, ViTForImageClassification

    named = {"num_labels": 100, "problem_type": "single_label_classification"}
    model = ViTForImageClassification(ViTConfig(**STACK, image_size=128, patch_size=16, **named))
    return model, {"pixel_values": torch.randn(16, 3, 128, 128), "labels": torch.randint(0, 100, (16,))}


@dataclass(frozen=True)
class Case:
    """A row: `build` gives the model and the arguments of a call that returns a loss."""

    name: str
    build: Callable[[], Built]
    kind: str = "transformer"


CASES = (Case("gpt2", gpt2), Case("llama", llama), Case("bert", bert), Case("t5", t5), Case("vit", vit))


def make_step(case: Case, candidate: str, checkpointed: bool = True) -> Callable[[], torch.Tensor]:
    """A training step of the case; the model is what the candidate compiles, the optimizer is eager in all of them."""
    torch.manual_seed(0)
    model, given = case.build()
    model.train()
    if checkpointed:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    model.config.use_cache = False  # type: ignore[union-attr]
    call = wrap(candidate, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = call(**given).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
