"""Text generated token by token with a cache that grows: eager and framesmith in turn, once everything is compiled.

Small models with random weights, prompts of 7 tokens, 64 tokens generated. The first pass, in which all is compiled,
and the second are rows of their own; the tokens must be eager's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness.candidates import wrap
from benchmarks.harness.timing import Row, compare, print_rows, ratios

TOKENS, PROMPT, BATCH, WORDS = 64, 7, 2, 100
ROUNDS = 7
CANDIDATES = ("eager", "framesmith")
#: The configuration's class, the model's class, settings.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 256}),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
        },
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "decoder_start_token_id": 0},
    ),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
}


def model_of(name: str) -> Any:
    """The model, the same for every candidate."""
    import transformers

    config, model, settings = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(vocab_size=WORDS, **settings)).eval()


def generator(name: str, strategy: str, candidate: str) -> Callable[[], torch.Tensor]:
    """Generates the same tokens each time it is called."""
    model = model_of(name)
    model.forward = wrap(candidate, model.forward)
    prompt = torch.randint(2, WORDS, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": TOKENS, "pad_token_id": 0, "eos_token_id": None, **STRATEGIES[strategy]}

    def generate() -> torch.Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            tokens: torch.Tensor = model.generate(prompt, **options)
        return tokens

    return generate


def measure(name: str, strategy: str) -> list[Row]:
    """The first pass of each candidate, and the passes that follow."""
    import framesmith

    framesmith.reset()  # strategies share the code of the model, and each is to compile all that it needs
    case = f"generation, {name}, {strategy}"
    steps = {candidate: generator(name, strategy, candidate) for candidate in CANDIDATES}
    rows, expected = [], steps[CANDIDATES[0]]()
    for order in ("first", "second"):
        times = {}
        for candidate, step in steps.items():
            start = time.perf_counter()
            tokens = step()
            times[candidate] = [time.perf_counter() - start]
            if not torch.equal(tokens, expected):
                raise RuntimeError(f"{case}: {candidate} generates other tokens than {CANDIDATES[0]}")
        rows += [Row(f"{case}, {order}", name, mine[0], ratios(mine, times, name), 1) for name, mine in times.items()]
    return rows + compare(case, steps, rounds=ROUNDS, target=0.01, warmup=0)


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = []
    for name in MODELS:
        for strategy in STRATEGIES:
            print_rows(found := measure(name, strategy))
            rows += found
    return rows
