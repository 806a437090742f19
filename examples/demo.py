"""The main job: train a digits classifier compiled, check a compiled BERT against eager, and time both and their peers.

Run with `nox -s demo`, or, in an environment with framesmith, transformers and scikit-learn: `python -m examples.demo`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import framesmith
from benchmarks.harness.candidates import available, fresh_inductor_cache, wrap
from benchmarks.harness.timing import compare, readable
from benchmarks.models.programs import DigitsNet, pointwise, small_bert, training_step

WANTED_ACCURACY = 0.97
EPOCHS = 12
BATCH = 64

Step = Callable[[], object]


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's digits, a quarter held out: images (n, 1, 8, 8) in [0, 1], labels (n,)."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in split)
    shape = (-1, 1, 8, 8)
    return train_x.float().reshape(shape), train_y.long(), test_x.float().reshape(shape), test_y.long()


def train(epochs: int) -> float:
    """Train the compiled network; returns the held-out accuracy."""
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = digits()
    model = DigitsNet()
    compiled = framesmith.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    accuracy = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        model.train()
        order = torch.randperm(len(train_x))
        for batch in order.split(BATCH)[: len(train_x) // BATCH]:
            loss = training_step(compiled, optimizer, train_x[batch], train_y[batch])()
        accuracy = evaluate(model, compiled, test_x, test_y)
        print(
            f"  epoch {epoch + 1:2}/{epochs}  loss {float(loss):.4f}  held-out accuracy {accuracy:.2%}"
            f"  ({time.perf_counter() - start:.2f} s)",
            flush=True,
        )
    return accuracy


def evaluate(model: torch.nn.Module, compiled: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of right answers."""
    model.eval()
    with torch.no_grad():
        return float((compiled(x).argmax(dim=1) == y).float().mean())


def check_bert() -> float:
    """The largest difference between compiled and eager BERT outputs; raises AssertionError beyond tolerance."""
    model, batch = small_bert()
    compiled = framesmith.compile(model)
    worst = 0.0
    with torch.no_grad():
        expected = model(**batch)
        for _ in range(3):
            actual = compiled(**batch)
            for name in ("last_hidden_state", "pooler_output"):
                torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=1e-4)
                worst = max(worst, float((actual[name] - expected[name]).abs().max()))
    return worst


def digits_step(name: str) -> Step:
    """A training step of the digits network as one candidate runs it."""
    torch.manual_seed(0)
    train_x, train_y, _, _ = digits()
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training_step(wrap(name, model), optimizer, train_x[:BATCH], train_y[:BATCH])


def bert_step(name: str) -> Step:
    """A BERT forward pass without gradients."""
    model, batch = small_bert()
    compiled = wrap(name, model)

    def step() -> object:
        with torch.no_grad():
            return compiled(**batch).last_hidden_state

    return step


def pointwise_step(name: str) -> Step:
    """The pointwise function on a million floats."""
    torch.manual_seed(0)
    x, y = torch.randn(1 << 20), torch.randn(1 << 20)
    compiled = wrap(name, pointwise)
    return lambda: compiled(x, y)


ROWS: list[tuple[str, Callable[[str], Step]]] = [
    ("(a) digits network, training step", digits_step),
    ("(b) BERT 4x256, inference", bert_step),
    ("(c) gelu(x*y+1).sin()*sigmoid(y), 1M", pointwise_step),
]


def timing_table() -> None:
    """First-call seconds and steady-state time per step, per candidate."""
    print(f"  {'':<38}{'candidate':<15}{'first call':>11}{'per step':>11}{'vs eager':>10}{'vs torch.compile':>18}")
    names = available()
    if "torch.compile" not in names:
        print("  (torch.compile needs g++, which is not on this machine: its rows are left out)")
    for title, make in ROWS:
        framesmith.reset()
        steps, first = {}, {}
        for name in names:
            steps[name] = make(name)
            start = time.perf_counter()
            steps[name]()
            first[name] = time.perf_counter() - start
        for row in compare(title, steps, rounds=15, target=0.1):
            speed = "".join(
                f"{row.ratio_to[peer]:>{width - 1}.2f}x" if peer in row.ratio_to else " " * width
                for peer, width in (("eager", 10), ("torch.compile", 18))
            )
            line = f"{readable(first[row.candidate]):>11}{readable(row.seconds):>11}{speed}"
            print(f"  {title:<38}{row.candidate:<15}{line}", flush=True)


def main() -> None:
    """The three parts, with progress."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    fresh_inductor_cache()
    print("(a) training a convolutional network on scikit-learn's digits, compiled", flush=True)
    accuracy = train(arguments.epochs)
    print(f"    accuracy {accuracy:.2%} (wanted: at least {WANTED_ACCURACY:.0%})", flush=True)
    print("(b) a transformers BERT with random weights, compiled, against eager", flush=True)
    print(f"    largest difference {check_bert():.2e} over three calls", flush=True)
    print(f"    {framesmith.stats()}", flush=True)
    print("(c) eager, torch.compile and framesmith (a ratio below 1 is faster)", flush=True)
    timing_table()
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"held-out accuracy {accuracy:.2%} is below {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
