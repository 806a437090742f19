"""Operators that read memory on the host are refused on fakes, however their sizes are known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from framesmith_aten.fakes import is_memory_read, new_fake_mode, python_kernels
from framesmith_aten.fakes.rules import memory_reads
from framesmith_aten.fakes.rules.memory_reads import MemoryRead
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_guards import LocalSource

GRU, LSTM, RNN = torch.nn.GRU(4, 6), torch.nn.LSTM(4, 6), torch.nn.RNN(4, 6)
DATA, BATCHES, STATE = torch.randn(8, 4), torch.tensor([3, 3, 2]), torch.zeros(1, 3, 6)


def gru(data: Any, batches: Any, state: Any) -> Any:
    return torch._VF.gru(data, batches, state, [*GRU.parameters()], True, 1, 0.0, False, False)


def lstm(data: Any, batches: Any, state: Any) -> Any:
    return torch._VF.lstm(data, batches, (state, state), [*LSTM.parameters()], True, 1, 0.0, False, False)


def rnn(data: Any, batches: Any, state: Any) -> Any:
    return torch._VF.rnn_tanh(data, batches, state, [*RNN.parameters()], True, 1, 0.0, False, False)


def padded(data: Any, batches: Any, state: Any) -> Any:
    return torch._VF._pad_packed_sequence(data, batches, False, 0.0, 3)


READING = [gru, lstm, rnn, padded]


def _fakes(symbols: bool) -> tuple[Any, list[Any]]:
    mode = new_fake_mode(allow_non_fake_inputs=True)
    tensors = (DATA, BATCHES, STATE)
    if not symbols:
        return mode, [mode.from_tensor(tensor) for tensor in tensors]
    sources = map(LocalSource, "abc")
    return mode, [symbolic_fake(mode, one, at, range(one.dim())) for one, at in zip(tensors, sources, strict=True)]


@pytest.mark.parametrize("symbols", [False, True], ids=["known sizes", "symbols"])
@pytest.mark.parametrize("function", READING, ids=lambda one: one.__name__)
def test_packed_sequences_are_refused(function: Callable[..., Any], symbols: bool) -> None:
    function(DATA, BATCHES, STATE)  # the call is right
    mode, fakes = _fakes(symbols)
    with mode, python_kernels(mode), pytest.raises(Exception) as raised:
        function(*fakes)
    assert is_memory_read(raised.value)
    assert isinstance(raised.value, MemoryRead) is symbols


def test_each_kind_of_arguments_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = memory_reads._reads
    monkeypatch.setattr(memory_reads, "_verdicts", {})
    monkeypatch.setattr(memory_reads, "_reads", lambda op, *rest: calls.append(op) or plain(op, *rest))
    for _ in range(3):
        mode, fakes = _fakes(True)
        with mode, python_kernels(mode), pytest.raises(MemoryRead, match=r"aten\.gru\.data reads elements"):
            gru(*fakes)
    assert calls == [torch.ops.aten.gru.data]


def test_what_reads_nothing_runs_on_symbols() -> None:
    mode = new_fake_mode()
    targets = symbolic_fake(mode, torch.tensor([0, 2, 1]), LocalSource("targets"), [0])
    scores = symbolic_fake(mode, torch.randn(3, 5), LocalSource("scores"), [0, 1])
    with mode, python_kernels(mode):
        loss = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    assert isinstance(loss.shape[0], torch.SymInt)


@pytest.mark.parametrize("symbols", [False, True], ids=["known sizes", "symbols"])
def test_no_address_is_given(symbols: bool) -> None:
    mode, fakes = _fakes(symbols)
    with mode, pytest.raises(RuntimeError) as raised:
        fakes[0].data_ptr()
    assert is_memory_read(raised.value)
    assert not is_memory_read(RuntimeError("something else")) and not is_memory_read(ValueError())


@pytest.fixture
def library() -> Iterator[Any]:
    made = torch.library.Library("framesmith_memory_reads", "FRAGMENT")
    yield made
    made._destroy()


def test_kernels_in_python_run_once(library: Any) -> None:
    runs = []

    def kernel(x: Any, batches: Any) -> Any:
        runs.append(1)
        return gru(x, batches, torch.zeros(1, 3, 6))[0]

    library.define("packed(Tensor x, Tensor batches) -> Tensor")
    library.impl("packed", kernel, "CompositeImplicitAutograd")
    mode, fakes = _fakes(True)
    with mode, python_kernels(mode), pytest.raises(MemoryRead, match="gru"):
        torch.ops.framesmith_memory_reads.packed(*fakes[:2])
    assert runs == [1]


SWEEP = """
import contextlib, logging, os, torch
from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_guards import LocalSource
from framesmith_aten.fakes.symbols import symbolic_fake

logging.disable(logging.CRITICAL)
torch.set_num_threads(1)

def given(kind, name, mode, whole):
    text = str(kind)
    if text.startswith("Optional["):
        return None
    if text == "Tensor":
        dtype = torch.int64 if whole else torch.float32
        real = torch.ones((3,) if whole else (3, 4), dtype=dtype)
        return real if mode is None else symbolic_fake(mode, real, LocalSource(name), range(real.dim()))
    if text == "List[Tensor]":
        return [given("Tensor", name, mode, whole)]
    return {"int": 1, "float": 1.0, "bool": False, "str": "sum", "number": 1, "List[int]": [1]}.get(text)

def call(op, mode, whole_at):
    tensors = 0
    args, named = [], {}
    for argument in op._schema.arguments:
        if argument.has_default_value():
            continue
        whole = "Tensor" in str(argument.type) and tensors == whole_at
        tensors += "Tensor" in str(argument.type)
        value = given(argument.type, argument.name, mode, whole)
        if argument.kwarg_only: named[argument.name] = value
        else: args.append(value)
    with contextlib.nullcontext() if mode is None else mode, (
        contextlib.nullcontext() if mode is None else python_kernels(mode)
    ):
        op(*args, **named)

RETURNED = bytes([255, 255])

def called(ops, fake):
    # How many return, in a process of their own, and which ended it.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for at, op in enumerate(ops):
            os.write(writing, at.to_bytes(2, "big"))
            for whole_at in (-1, 1):
                with contextlib.suppress(Exception):
                    call(op, new_fake_mode() if fake else None, whole_at)
                    os.write(writing, RETURNED)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        found = [*iter(lambda: pipe.read(2), b"")]
    last = int.from_bytes([one for one in found if one != RETURNED][-1], "big")
    status = os.waitpid(child, 0)[1]
    return found.count(RETURNED), last if os.WIFSIGNALED(status) else None

with python_kernels(given("Tensor", "x", new_fake_mode(), False).fake_mode):
    pass
ops = []
for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"):
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    ops.append(getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default"))
returned = 0
while ops:
    some, at = called(ops, True)
    returned += some
    alone = [] if at is None else ops[at : at + 1]
    # By itself, not by what an operator before it has written where it should not; and real tensors do not do so.
    if alone and called(alone, True)[1] is not None and called(alone, False)[1] is None:
        print(alone)
    ops = [] if at is None else ops[at + 1 :]
print(returned)
"""


@pytest.mark.nightly
def test_no_composite_operator_of_torch_ends_the_process() -> None:
    """Each of them, called on symbols by its schema, with whole numbers at each place."""
    command = [sys.executable, "-W", "ignore", "-c", SWEEP]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    *fatal, returned = run.stdout.split()
    assert not fatal
    assert int(returned) > 200
