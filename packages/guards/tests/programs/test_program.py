"""Compiled programs: order and sharing, safety of evaluation, identity without ownership, explanations."""

import dataclasses
import gc
import itertools
import weakref

import pytest
import torch

from framesmith_guards import (
    AttrSource,
    DictKeySource,
    DictValueSource,
    GlobalSource,
    Guard,
    GuardError,
    GuardsSet,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    TensorSpec,
    TypeSource,
    compile_guards,
    parameter_source,
    state_guards,
)

X = LocalSource("x")


class Counting:
    """Counts how often its member is read, and refuses to be read by strangers."""

    def __init__(self):
        self.reads = 0

    @property
    def member(self):
        self.reads += 1
        return (1, 2)


def f(x, y=None):
    return x


def test_items_of_a_dict_are_read_by_their_numbers_in_any_order_and_past_gaps():
    guards = [Guard(DictValueSource(X, n), "EQUALS_MATCH", n) for n in (3, 0, 1, 4, 4, 2)]
    guards += [Guard(DictKeySource(X, n), "EQUALS_MATCH", f"k{n}") for n in (1, 3)]
    program = compile_guards(guards, ("x",))
    plain = {f"k{n}": n for n in range(5)}
    gaps = {"other": -1} | plain
    del gaps["other"]
    assert [program((found,), f) for found in (plain, gaps, plain)] == [True] * 3
    others = dict(list(plain.items())[::-1]), {"k0": 0}, {}
    assert [program((found,), f) for found in others] == [False] * 3


def test_objects_as_keys_are_compared_by_identity_and_not_kept_alive():
    keys = [Counting() for _ in range(3)]
    program = compile_guards([Guard(X, "DICT_KEYS", dict.fromkeys(keys))], ("x",))
    assert program((dict.fromkeys(keys),), f) and not program((dict.fromkeys(keys[::-1]),), f)
    others = [*keys[:2], Counting()], keys[:2], [*keys, None]
    assert not any(program((dict.fromkeys(other),), f) for other in others)
    died = weakref.ref(keys.pop())
    del others
    gc.collect()
    assert died() is None and not program((dict.fromkeys([*keys, None]),), f)


def test_each_source_is_loaded_once():
    value = Counting()
    member = AttrSource(X, "member")
    guards = [
        Guard(X, "TYPE_MATCH", Counting),
        Guard(ItemSource(member, 0), "EQUALS_MATCH", 1),
        Guard(ItemSource(member, 1), "EQUALS_MATCH", 2),
        Guard(member, "LENGTH", 2),
    ]
    program = compile_guards(guards, ("x",), inputs=[member])
    assert program((value,), f) and value.reads == 1
    assert program.extract((value,), f) == ((1, 2),) and value.reads == 2
    assert program.text.count(".member") == 1 + program.text.count("# L['x'].member")


def test_a_child_is_read_only_after_its_parent_held():
    class Explosive:
        @property
        def member(self):
            raise SystemExit("read")

    member = AttrSource(X, "member")
    for guards in itertools.permutations(
        [
            Guard(X, "TYPE_MATCH", Counting),
            Guard(member, "LENGTH", 2),
            Guard(ItemSource(member, 0), "EQUALS_MATCH", 1),
        ]
    ):
        program = compile_guards(guards, ("x",))
        assert program((Counting(),), f)
        assert not program((Explosive(),), f)
        assert len(program.misses((Explosive(),), f)) == 1


def test_likely_misses_come_before_stable_checks():
    layer = torch.nn.Linear(2, 2)
    guards = [
        Guard(parameter_source(GlobalSource("layer"), "weight"), "TENSOR_MATCH", layer.weight),
        Guard(X, "TENSOR_MATCH", torch.ones(3)),
        *state_guards(),
    ]
    lines = compile_guards(guards, ("x",)).text.splitlines()
    order = [next(i for i, line in enumerate(lines) if what in line) for what in ("STATE", "args[0]", "__globals__")]
    assert order == sorted(order)


def test_an_exception_while_checking_is_a_miss():
    program = compile_guards([Guard(ItemSource(X, 3), "EQUALS_MATCH", 1)], ("x",))
    assert not program(([],), f) and not program((), f)
    assert program.explain(([],), f) == "L['x'][3]: cannot be evaluated: IndexError: list index out of range"


def test_keyboard_interrupts_pass():
    class Interrupted:
        def __len__(self):
            raise KeyboardInterrupt

    program = compile_guards([Guard(X, "LENGTH", 1)], ("x",))
    with pytest.raises(KeyboardInterrupt):
        program((Interrupted(),), f)


def test_guarded_objects_are_not_kept_alive_and_a_reused_address_cannot_match():
    class Local:
        pass

    value = Local()
    guards = [Guard(X, "ID_MATCH", value), Guard(TypeSource(X), "ID_MATCH", Local)]
    program = compile_guards(guards, ("x",))
    assert program((value,), f) and program.dead is None
    gone, gone_class = weakref.ref(value), weakref.ref(Local)
    del value
    assert gone() is None
    assert "Local object" in program.dead
    assert not program((Local(),), f)
    assert "is gone" in program.explain((Local(),), f)
    del Local
    gc.collect()
    assert gone_class() is None


def test_a_guard_on_what_is_gone_cannot_be_compiled():
    value = Counting()
    guard = Guard(X, "ID_MATCH", value)
    del value
    with pytest.raises(GuardError, match="is gone"):
        compile_guards([guard], ("x",))


def test_a_program_dies_without_leaving_callbacks():
    value = Counting()
    before = weakref.getweakrefcount(value)
    program = compile_guards([Guard(X, "ID_MATCH", value)], ("x",))
    del program
    gc.collect()
    assert weakref.getweakrefcount(value) == before


class Recorder(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"user code ran: {func}")


def test_reading_tensors_runs_no_torch_function():
    x = torch.ones(2)
    program = compile_guards([Guard(X, "TENSOR_MATCH", x)], ("x",))
    with Recorder() as mode:
        assert program((x,), f) and program.explain((x,), f) is None
    assert mode.seen == []
    odd = torch.ones(2).as_subclass(Subclass)
    guards = [*state_guards(), Guard(X, "TENSOR_MATCH", odd)]
    program = compile_guards(guards, ("x",))
    assert program((odd,), f) and not program((x,), f)
    assert "Subclass" in program.explain((x,), f)


def test_what_a_spec_opens():
    x = torch.ones(4, 3, 2)
    spec = dataclasses.replace(TensorSpec.of(x), sizes=(None, None, 2), strides=(None, 2, 1))
    program = compile_guards([Guard(X, "TENSOR_MATCH", spec)], ("x",))
    assert program((torch.ones(9, 8, 2),), f)
    assert not program((torch.ones(9, 8, 3),), f)
    assert not program((torch.ones(2, 8, 9).permute(2, 1, 0),), f)
    assert "?" in str(spec)


def test_misses_skip_what_hangs_on_a_miss():
    guards = [
        Guard(X, "TYPE_MATCH", dict),
        Guard(ItemSource(X, "a"), "EQUALS_MATCH", 1),
        Guard(LocalSource("y"), "NONE_MATCH"),
    ]
    program = compile_guards(guards, ("x", "y"))
    first, second = program.misses(([], 1), f)
    assert first.startswith("L['x']: expected type dict, found list object")
    assert second == "L['y']: expected None, found 1"


def test_keys_by_position_and_identity():
    key = Counting()
    guards = [Guard(X, "DICT_KEYS", {key: 1}), Guard(DictKeySource(X, 0), "TYPE_MATCH", Counting)]
    program = compile_guards(guards, ("x",))
    assert program(({key: 5},), f) and not program(({Counting(): 5},), f)


def test_guard_sets():
    a, b = Guard(X, "EQUALS_MATCH", 1), Guard(X, "EQUALS_MATCH", True)
    guards = GuardsSet([a])
    assert not guards.add(Guard(X, "EQUALS_MATCH", 1)) and guards.add(b)
    assert len(guards) == 2 and list(guards) == [a, b] and a in guards
    guards.add(Guard(AttrSource(X, "a"), "NONE_MATCH"))
    guards.add(Guard(LocalSource("y"), "NONE_MATCH"))
    assert [g.source.name for g in guards - [a]] == ["L['x']", "L['x'].a", "L['y']"]
    assert not guards - guards and guards - guards == GuardsSet()


def test_equal_guards_on_changing_objects_are_distinct():
    one, two = Counting(), Counting()
    assert Guard(X, "ID_MATCH", one) == Guard(X, "ID_MATCH", one) != Guard(X, "ID_MATCH", two)
    assert Guard(X, "TENSOR_MATCH", torch.ones(2)) == Guard(X, "TENSOR_MATCH", torch.zeros(2))
    assert Guard(X, "EQUALS_MATCH", 0.0) != Guard(X, "EQUALS_MATCH", -0.0)
    assert Guard(X, "DICT_KEYS", {1: 0}) != Guard(X, "DICT_KEYS", {True: 0})


def test_export_info():
    guard = Guard(InstanceDictSource(X), "LENGTH", 0)
    assert compile_guards([guard], ("x",)).text.count("length_of(x___dict) == 0") == 1
    assert guard.export.code == ["length_of(x___dict) == 0"]
    guard.export.record("again")
    assert guard.export.code == ["length_of(x___dict) == 0", "again"]
