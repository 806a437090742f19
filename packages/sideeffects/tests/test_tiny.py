"""The first file to run: two stores to an attribute, noted while tracing and replayed as one."""

from types import FunctionType, SimpleNamespace

from framesmith_bytecode import Codegen, encode
from framesmith_guards import LocalSource
from framesmith_sideeffects import Journal, Replay, load_source


class Value:
    """An argument of the traced function, or a constant."""

    def __init__(self, source=None, constant=None):
        self.source, self.mutation, self.constant = source, None, constant

    def referents(self):
        return ()

    def reconstruct(self, codegen):
        codegen.load_const(self.constant) if self.source is None else load_source(codegen, self.source)


def test_mutations_are_noted_and_replayed_once():
    box, journal, codegen = SimpleNamespace(count=0), Journal(), Codegen(["box"])
    value = Value(LocalSource("box"))
    journal.track_existing(value, box)
    journal.store_attr(value, "count", Value(constant=1))
    journal.store_attr(value, "count", Value(constant=2))
    assert box.count == 0
    journal.prune([])
    replay = Replay(journal, codegen)
    replay.make()
    replay.apply()
    codegen.load_const(None)
    codegen.return_value()
    FunctionType(encode(codegen.bytecode("replayed")), {})(box)
    assert box.count == 2
