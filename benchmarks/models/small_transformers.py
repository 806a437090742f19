"""Small transformers with random weights: four layers of width 256, built from transformers' own configurations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LAYERS, HEADS, WORDS, BATCH, LENGTH = 256, 4, 4, 1000, 4, 128
Built = tuple[nn.Module, dict[str, torch.Tensor]]
BLOCKS: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
STACK: dict[str, Any] = {**BLOCKS, "intermediate_size": 4 * WIDTH}


def tokens(length: int = LENGTH) -> torch.Tensor:
    """A batch of random sentences."""
    return torch.randint(0, WORDS, (BATCH, length))


def bert() -> Built:
    """An encoder with an attention mask."""
    from transformers import BertConfig, BertModel

    words = tokens()
    model = BertModel(BertConfig(**STACK, vocab_size=WORDS))
    return model, {"input_ids": words, "attention_mask": torch.ones_like(words)}


def gpt2() -> Built:
    """A decoder with learned positions."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS, use_cache=False)
    return GPT2Model(config), {"input_ids": tokens()}


def llama() -> Built:
    """A decoder with rotary positions, grouped heads and gated layers."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**STACK, num_key_value_heads=2, vocab_size=WORDS, use_cache=False)
    return LlamaModel(config), {"input_ids": tokens()}


def t5() -> Built:
    """An encoder and a decoder with relative positions."""
    from transformers import T5Config, T5Model

    config = T5Config(d_model=WIDTH, d_kv=64, d_ff=1024, num_layers=LAYERS, num_heads=HEADS, vocab_size=WORDS)
    config.use_cache = False
    return T5Model(config), {"input_ids": tokens(), "decoder_input_ids": tokens(32)}


def vit() -> Built:
    """Patches of 128 x 128 pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**STACK, image_size=128, patch_size=16)
    return ViTModel(config), {"pixel_values": torch.randn(BATCH, 3, 128, 128)}


def whisper() -> Built:
    """Sound through an encoder with convolutions, text through a decoder."""
    from transformers import WhisperConfig, WhisperModel

    halves = {
        f"{half}_{what}": size
        for half in ("encoder", "decoder")
        for what, size in (("layers", 2), ("attention_heads", HEADS), ("ffn_dim", 1024))
    }
    config = WhisperConfig(**halves, d_model=WIDTH, vocab_size=WORDS, num_mel_bins=40, max_source_positions=100,
                           max_target_positions=64, use_cache=False, pad_token_id=0, bos_token_id=1,
                           eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
    return WhisperModel(config), {"input_features": torch.randn(BATCH, 40, 200), "decoder_input_ids": tokens(32)}


def clip() -> Built:
    """A text tower and a vision tower."""
    from transformers import CLIPConfig, CLIPModel

    text = {**STACK, "vocab_size": WORDS, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    config = CLIPConfig(text_config=text, vision_config={**STACK, "image_size": 128, "patch_size": 16})
    return CLIPModel(config), {"input_ids": tokens(64), "pixel_values": torch.randn(BATCH, 3, 128, 128)}


class HandAttention(nn.Module):
    """Causal attention written out: a softmax of a matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~self.mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


def hand_attention() -> Built:
    """Attention that no library call names."""
    return HandAttention(), {"x": torch.randn(BATCH, LENGTH, WIDTH)}


class Decode(nn.Module):
    """One token against caches of fixed size, written in place at a position given as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.register_buffer("cache", torch.zeros(LAYERS, 2, BATCH, HEADS, 256, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        seen = (torch.arange(256, device=position.device) <= position)[None]
        for layer in range(LAYERS):
            q, k, v = self.qkv[layer](F.layer_norm(x, (WIDTH,))).view(BATCH, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            keys, values = self.cache[layer]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + self.out[layer](mixed.transpose(1, 2).reshape(BATCH, 1, WIDTH))
            x = x + self.down[layer](F.silu(self.up[layer](F.layer_norm(x, (WIDTH,)))))
        return x


def decode() -> Built:
    """A step of generation, half the cache seen."""
    return Decode(), {"x": torch.randn(BATCH, 1, WIDTH), "position": torch.tensor([127])}
