"""The registry of models: one row each, used by every suite that measures whole models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.harness.device import building, chosen
from benchmarks.harness.registry import TYPES, matching
from benchmarks.models import convolutional, vectors
from benchmarks.models import small_transformers as transformers

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TYPES}
BOTH, SINGLE = ("float32", "bfloat16"), ("float32",)
MODES = ("inference", "training")


@dataclass(frozen=True)
class Model:
    """A row: `build` gives the module and the arguments of a call, batch included."""

    name: str
    kind: str
    build: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]
    dtypes: tuple[str, ...] = SINGLE
    modes: tuple[str, ...] = MODES
    openvino: bool = False


MODELS = (
    Model("bert", "transformer", transformers.bert, BOTH, openvino=True),
    Model("gpt2", "transformer", transformers.gpt2, BOTH),
    Model("llama", "transformer", transformers.llama, BOTH),
    Model("t5", "transformer", transformers.t5),
    Model("vit", "transformer", transformers.vit, BOTH, openvino=True),
    Model("whisper", "transformer", transformers.whisper),
    Model("clip", "transformer", transformers.clip),
    Model("hand_attention", "attention", transformers.hand_attention, BOTH),
    Model("decode", "decode step", transformers.decode, modes=("inference",)),
    Model("resnet18", "convolution", convolutional.resnet18, BOTH, openvino=True),
    Model("mobilenet", "convolution", convolutional.mobilenet),
    Model("unet", "convolution", convolutional.unet),
    Model("diffusion", "convolution", convolutional.diffusion),
    Model("transposed_autoencoder", "convolution", convolutional.transposed_autoencoder),
    Model("wide_mlp", "perceptron", vectors.wide_mlp, BOTH, openvino=True),
    Model("small_mlp", "perceptron", vectors.small_mlp, BOTH),
    Model("linear_12", "perceptron", lambda: vectors.linears(12)),
    Model("linear_48", "perceptron", lambda: vectors.linears(48)),
    Model("autoencoder", "perceptron", vectors.autoencoder),
    Model("lstm", "recurrent", vectors.lstm),
    Model("gru", "recurrent", vectors.gru),
    Model("lstm_loop", "recurrent", vectors.lstm_loop),
    Model("gru_loop", "recurrent", vectors.gru_loop),
    Model("state_space", "recurrent", vectors.state_space),
    Model("experts", "experts", vectors.experts),
    Model("graph", "graph", vectors.graph),
    Model("recommender", "recommender", vectors.recommender),
    Model("flow", "generative", vectors.flow),
    Model("variational", "generative", vectors.variational),
)


def select(pattern: str = "*") -> list[Model]:
    """The rows whose name or kind matches a pattern of the shell; none is an error that lists the names."""
    return matching(MODELS, pattern, "model")


def build(row: Model, mode: str, dtype: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The module in its mode on the device, weights and floating inputs of that type; the same for every candidate."""
    torch.manual_seed(0)
    with building():
        module, inputs = row.build()
    cast = {name: x.to(DTYPES[dtype]) if x.is_floating_point() else x for name, x in inputs.items()}
    return module.to(chosen(), DTYPES[dtype]).train(mode == "training"), cast


def result(output: object) -> torch.Tensor:
    """The tensor of an output: itself, its last hidden state, or the scores of a pair of towers."""
    if isinstance(output, torch.Tensor):
        return output
    hidden = getattr(output, "last_hidden_state", None)
    found = hidden if hidden is not None else getattr(output, "logits_per_text", None)
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"a model gave {type(output).__name__}, which has no tensor to measure by")
    return found


def make_step(
    row: Model, mode: str, dtype: str, wrap: Callable[[nn.Module], Callable[..., object]]
) -> Callable[[], torch.Tensor]:
    """Inference: a call under no_grad. Training: forward, backward and gradients dropped (no optimizer)."""
    module, inputs = build(row, mode, dtype)
    call = wrap(module)

    def infer() -> torch.Tensor:
        with torch.no_grad():
            return result(call(**inputs))

    def train() -> torch.Tensor:
        module.zero_grad(set_to_none=True)
        out = result(call(**inputs))
        loss = out if out.dim() == 0 else out.float().square().mean()
        loss.backward()
        return loss.detach()

    return train if mode == "training" else infer
