"""Threads check, compile and drop programs while values change: no wrong answer, no growth. FRAMESMITH_LONG: 60 s."""

import gc
import os
import random
import sys
import threading
import time

import pytest
import torch

from framesmith_guards import (
    Guard,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    TypeSource,
    compile_guards,
    parameter_source,
    state_guards,
    submodule_source,
)

X, Y = LocalSource("x"), LocalSource("y")
LONG = bool(os.environ.get("FRAMESMITH_LONG"))
SECONDS = 60 if LONG else 2
THREADS = 8
LAYERS = 4


def f(x, y):
    return x


class Scaled(torch.nn.Linear):
    """A layer with an attribute, and whose class changes."""


class Case:
    """A model that the case's mutator owns, and what is to be said of it: `state` counts its changes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.layer = type(f"Layer{seed}", (Scaled,), {"kept": 1})
        self.model = torch.nn.Sequential(*(self.layer(2, 2) for _ in range(LAYERS)))
        for layer in self.model:
            layer.scale = 0.5
        self.table = {f"k{i}": i for i in range(20)}
        self.expected = True
        self.stop = False
        self.wrong = []
        self.checks = 0
        self.lock, self.one_change = threading.Lock(), threading.Lock()
        self.program = self.compile()

    def compile(self):
        guards = [
            *state_guards(),
            Guard(Y, "DICT_KEYS", list(self.table)),
            Guard(ItemSource(Y, "k3"), "EQUALS_MATCH", 3),
            Guard(TypeSource(submodule_source(X, "0")), "CLASS_LAYOUT", self.layer),
            Guard(
                parameter_source(submodule_source(X, "0"), "bias"),
                "NO_OVERLAP",
                [parameter_source(submodule_source(X, "1"), "bias")],
            ),
        ]
        for index, layer in enumerate(self.model):
            source = submodule_source(X, str(index))
            guards += [
                Guard(source, "TYPE_MATCH", self.layer),
                Guard(ItemSource(InstanceDictSource(source), "scale"), "EQUALS_MATCH", 0.5),
                Guard(parameter_source(source, "weight"), "TENSOR_MATCH", layer.weight),
                Guard(parameter_source(source, "bias"), "TENSOR_MATCH", layer.bias),
            ]
        return compile_guards(guards, ("x", "y"), inputs=[X, parameter_source(submodule_source(X, "1"), "weight")])

    def changes(self):
        """(change, undo) pairs: after the first the program must miss, after the second hold."""
        layer = self.random.choice(list(self.model))
        weight, shape = layer.weight, layer.weight.data
        return self.random.choice([
            (lambda: setattr(layer, "scale", 0.25), lambda: setattr(layer, "scale", 0.5)),
            (lambda: delattr(layer, "scale"), lambda: setattr(layer, "scale", 0.5)),
            (lambda: setattr(weight, "data", torch.ones(3, 2)), lambda: setattr(weight, "data", shape)),
            (lambda: weight.requires_grad_(False), lambda: weight.requires_grad_(True)),
            (lambda: setattr(layer, "weight", torch.nn.Parameter(torch.ones(3))),
             lambda: setattr(layer, "weight", torch.nn.Parameter(torch.ones(2, 2)))),
            (lambda: self.table.update(k3=4), lambda: self.table.update(k3=3)),
            (lambda: self.table.pop("k19"), lambda: self.table.update(k19=19)),
            (lambda: setattr(self.layer, "added", 1), lambda: delattr(self.layer, "added")),
        ])  # fmt: skip

    def check(self):
        """One check while nothing may change; then also extraction."""
        with self.lock:
            holds = self.program((self.model, self.table), f)
            inputs = self.program.extract((self.model, self.table), f)
            if holds is not self.expected or (inputs is not None) is not self.expected:
                self.wrong.append((holds, self.expected, self.program.explain((self.model, self.table), f)))
            if inputs is not None and inputs[1] is not self.model[1].weight:
                self.wrong.append("extracted another weight")
            self.checks += 1

    def change(self):
        """One change and its undoing, with checks by others between."""
        with self.one_change:
            change, undo = self.changes()
            with self.lock:
                change()
                self.expected = False
            self.check()
            with self.lock:
                undo()
                self.expected = True
            self.check()

    def look(self):
        """A check that races with changes: any answer will do, no crash."""
        self.program((self.model, self.table), f)
        self.program.extract((self.model, self.table), f)

    def renew(self):
        """Drop the program for a new one, while others run the old one."""
        with self.lock:
            if self.expected:
                self.program = self.compile()


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_check_compile_and_drop_while_values_change():
    cases = [Case(seed) for seed in range(2)]
    stop, errors = threading.Event(), []

    def work(number):
        rng = random.Random(number)
        roles = ["check", "look", "look", "change", "renew"] if number % 4 == 0 else ["check", "look", "check", "look"]
        try:
            while not stop.is_set():
                case = rng.choice(cases)
                getattr(case, rng.choice(roles))()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 3)  # warm up
        gc.collect()
        before = resident_bytes()
        time.sleep(SECONDS * 2 / 3)
        gc.collect()
        after = resident_bytes()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(switch)
    assert errors == []
    assert [case.wrong for case in cases] == [[], []]
    assert min(case.checks for case in cases) > 50
    print(f"{sum(case.checks for case in cases)} checks, grown by {(after - before) / 1024:.0f} KiB")
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps freed memory for a while
        assert after - before < 5 << 20
