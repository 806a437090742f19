"""Native programs: the capsule, blocks that are skipped only while nothing changed, tensors changed in place."""

import ctypes
import dataclasses
import gc
import itertools
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
import sympy
import torch
from native_programs import X, agreed, f, layers, native

from framesmith_guards import (
    AttrSource,
    ClosureSource,
    GlobalSource,
    Guard,
    GuardError,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    ShapeEnvSource,
    ShapeExpr,
    TensorPropertySource,
    TensorSpec,
    compile_guards,
    parameter_source,
    submodule_source,
)
from framesmith_guards.programs.native import modes, probing
from framesmith_guards.programs.native import program as native_module
from framesmith_guards.programs.native.probing import extension, why_no_tensors
from framesmith_guards.programs.native.rows import BLOCK_KINDS

pytestmark = pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))

Y = LocalSource("y")


def test_torch_is_understood():
    assert why_no_tensors() is None


def forget_probes():
    """Forget what was found out of this torch."""
    why_no_tensors.cache_clear()
    modes._known.cache_clear()
    modes._right.cache_clear()


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (1, "the tensor handle was not found at one place"),
        (2, "the dispatch keys were not found at one place"),
        (3, "torch's C shim and Python disagree"),
        (4, "the storage was not found at one place"),
        (5, "torch's C shim and Python disagree"),
    ],
)
def test_a_torch_that_moved_things_is_refused_politely(field, reason, monkeypatch):
    def moved(tensor):
        fields = list(probe(tensor))
        fields[field] = (*fields[field], 1) if field == 3 else fields[field] + 8
        return tuple(fields)

    probe = probing._probe
    forget_probes()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(probing, "_probe", moved)
            assert reason in why_no_tensors()
        x, model = torch.ones(2, 3), torch.nn.Linear(2, 2)
        guards = [
            Guard(X, "TENSOR_MATCH", x),
            Guard(parameter_source(Y, "weight"), "TENSOR_MATCH", model.weight),
            Guard(X, "NO_OVERLAP", parameter_source(Y, "weight")),
        ]
        program = native(guards, ("x", "y"))
        for _ in range(3):
            assert agreed(program, (x, model)) and not agreed(program, (x.double(), model))
        model.weight.requires_grad_(False)
        assert not agreed(program, (x, model))
    finally:
        forget_probes()
        assert why_no_tensors() is None


def test_a_torch_without_the_shim_is_refused_politely(monkeypatch):
    monkeypatch.setattr(probing, "LIBRARIES", ("libnothing.so",))
    forget_probes()
    try:
        assert why_no_tensors() == "none of libnothing.so is in torch's folder"
        assert agreed(native([Guard(X, "TENSOR_MATCH", torch.ones(2))]), (torch.ones(2),))
    finally:
        monkeypatch.undo()
        forget_probes()
        assert why_no_tensors() is None


def test_without_torchs_own_method_requires_grad_is_read_as_an_attribute(monkeypatch):
    forget_probes()
    try:
        monkeypatch.setattr(probing, "_find_grad", lambda native: None)
        assert why_no_tensors() is None
        test_requires_grad_is_read_as_torch_does()
        model = torch.nn.Linear(2, 2)
        guards = [
            Guard(X, "TENSOR_MATCH", model.weight),
            Guard(parameter_source(Y, "weight"), "TENSOR_MATCH", model.weight),
        ]
        program = compile_guards(guards, ("x", "y"), native=True)
        with Loud():
            for _ in range(3):
                assert program((model.weight, model), f)
    finally:
        monkeypatch.undo()
        forget_probes()
        assert why_no_tensors() is None


class Loud(torch.overrides.TorchFunctionMode):
    """A mode that no check may run."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"a check ran {func}")


def test_a_torch_that_lacks_what_probing_needs_is_refused_politely(monkeypatch):
    def lacking(tensor):
        raise AttributeError("_cdata")

    forget_probes()
    try:
        monkeypatch.setattr(probing, "_probe", lacking)
        assert why_no_tensors() == "probing failed: AttributeError: _cdata"
    finally:
        monkeypatch.undo()
        forget_probes()
        assert why_no_tensors() is None


def test_the_capsule_of_frames():
    program = native([Guard(X, "EQUALS_MATCH", 3)])
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = get(program.__framesmith_check__, b"framesmith.check.v1")
    check_type = ctypes.PYFUNCTYPE(
        ctypes.c_int,
        ctypes.py_object,
        ctypes.POINTER(ctypes.py_object),
        ctypes.c_ssize_t,
        ctypes.py_object,
        ctypes.c_void_p,
    )

    class Struct(ctypes.Structure):
        _fields_ = [("version", ctypes.c_int), ("check", check_type)]

    struct = Struct.from_address(pointer)
    assert struct.version == 1
    for value, expected in ((3, 1), (4, 0)):
        assert struct.check(program, (ctypes.py_object * 1)(value), 1, f, None) == expected


def test_python_programs_are_there_too():
    guards = [Guard(X, "EQUALS_MATCH", 3)]
    assert not hasattr(compile_guards(guards, ("x",), native=False), "__framesmith_check__")
    assert hasattr(compile_guards(guards, ("x",)), "__framesmith_check__")


def test_without_the_extension_programs_are_python_and_say_why(monkeypatch):
    monkeypatch.setattr(native_module, "extension", lambda: (None, "it was not built"))
    guards = [Guard(X, "EQUALS_MATCH", 3)]
    assert not hasattr(compile_guards(guards, ("x",)), "__framesmith_check__")
    with pytest.raises(GuardError, match="natively: it was not built"):
        compile_guards(guards, ("x",), native=True)


def changes():
    """Changes that must make the program of `layers` miss: (name, do it to the model)."""

    def replace_dict(model):
        model[1].__dict__ = {**model[1].__dict__, "scale": 0.25}

    class Odd(torch.nn.Linear):
        pass

    return {
        "float attribute": lambda m: setattr(m[1], "scale", 0.25),
        "equal float of another type": lambda m: m[1].__dict__.update(scale=sympy.Float(0.5)),
        "attribute deleted": lambda m: delattr(m[1], "scale"),
        "instance forward": lambda m: setattr(m[1], "forward", None),
        "another dict": replace_dict,
        "parameter replaced": lambda m: setattr(m[1], "weight", torch.nn.Parameter(torch.ones(3, 2))),
        "parameter frozen": lambda m: m[1].weight.requires_grad_(False),
        "parameter of other data": lambda m: setattr(m[1].weight, "data", torch.ones(3, 2)),
        "parameter of other dtype": lambda m: m.double(),
        "parameter strided otherwise": lambda m: setattr(m[1].weight, "data", m[1].weight.data.t()),
        "parameter gone": lambda m: m[1].register_parameter("bias", None),
        "plain tensor for a parameter": lambda m: m[1]._parameters.update(weight=torch.ones(2, 2, requires_grad=True)),
        "hook": lambda m: m[1].register_forward_hook(lambda *a: None),
        "class changed": lambda m: setattr(m[1], "__class__", Odd),
        "layer replaced": lambda m: m._modules.update({"1": torch.nn.ReLU()}),
        "layer added": lambda m: m.append(torch.nn.ReLU()),
        "layers in another order": lambda m: m._modules.update({"0": m._modules.pop("0")}),
        "class of the whole": lambda m: setattr(m, "__class__", torch.nn.ModuleList),
    }


@pytest.mark.parametrize("name", sorted(changes()))
def test_a_change_anywhere_in_a_proved_tree_is_seen(name):
    model, guards = layers(3)
    program = native(guards)
    for _ in range(3):
        assert agreed(program, (model,))
    [(hits, records, proved)] = program.blocks
    assert (hits, records, proved) == (2, 1, True)
    changes()[name](model)
    assert not agreed(program, (model,))
    assert not agreed(program, (model,))


def test_changes_without_meaning_keep_holding():
    model, guards = layers(3)
    program = native(guards)
    assert agreed(program, (model,)) and agreed(program, (model,))
    model[0].weight.grad = torch.ones(2, 2)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert agreed(program, (model,)) and program.blocks[0][1] == 1
    model[0].other = 1
    assert agreed(program, (model,)) and program.blocks[0][1] == 2
    other, _ = layers(3)
    assert agreed(program, (other,)) and agreed(program, (model,))


PROVABLE = {
    "TYPE_MATCH": ([1], list),
    "ID_MATCH": (len, len),
    "NONE_MATCH": (None, None),
    "NOT_NONE": (5, None),
    "BOOL_MATCH": (True, True),
    "LENGTH": ([1], 1),
    "DICT_KEYS": ({"a": 1}, {"a": 1}),
    "DICT_CONTAINS": ({"a": 1}, "a"),
    "DICT_NOT_CONTAINS": ({"a": 1}, "b"),
    "FUNCTION_CODE": (f, f),
    "EQUALS_MATCH": (5, 5),
    "TENSOR_MATCH": (torch.ones(2), torch.ones(2)),
    "PLAIN_LEAF": (torch.ones(2), torch.float32),
}


@pytest.mark.parametrize("kind", sorted(BLOCK_KINDS))
def test_the_extension_proves_each_kind_that_lowering_puts_into_blocks(kind):
    value, expected = PROVABLE[kind]
    holder = SimpleNamespace(value=value)
    source = ItemSource(InstanceDictSource(X), "value")
    known = [Guard(source, "TENSOR_MATCH", value)] if isinstance(value, torch.Tensor) else []
    program = native([Guard(X, "TYPE_MATCH", SimpleNamespace), *known, Guard(source, kind, expected)])
    assert program((holder,), f) and program((holder,), f)
    assert program.blocks == ((1, 1, True),)


def test_a_tree_that_always_changes_is_not_recorded_for_ever():
    model, guards = layers(1)
    program = native(guards)
    for step in range(100):
        model[0].step = step
        assert program((model,), f)
    assert program.blocks[0][1] <= 20


def test_a_proof_keeps_nothing_alive():
    model, guards = layers(2)
    program = native(guards)
    assert program((model,), f) and program((model,), f)
    gone = [weakref.ref(model), weakref.ref(model[1]), weakref.ref(model[1].weight)]
    del model, guards
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    for _ in range(50):
        again, _ = layers(2)
        assert agreed(program, (again,))
    again[1].scale = 1.0
    assert not agreed(program, (again,))


def test_outputs_of_a_proof_are_the_current_objects():
    model, guards = layers(2)
    weight = parameter_source(submodule_source(X, "1"), "weight")
    program = native(guards, inputs=[X, weight])
    for _ in range(3):
        assert program.extract((model,), f)[1] is model[1].weight
    model[1].weight = torch.nn.Parameter(torch.zeros(2, 2))
    for _ in range(3):
        assert program.extract((model,), f)[1] is model[1].weight
    model[1].scale = 1.0
    assert program.extract((model,), f) is None


def test_an_input_may_be_asked_for_twice():
    model, guards = layers(2)
    weight = parameter_source(submodule_source(X, "1"), "weight")
    program = native(guards, inputs=[X, weight, X, weight, weight])
    own = model[1].weight
    counts = [sys.getrefcount(model), sys.getrefcount(own)]
    for _ in range(3):
        assert program.extract((model,), f) == (model, own, model, own, own)
    assert [sys.getrefcount(model), sys.getrefcount(own)] == counts


GLOBAL_MODEL = torch.nn.Linear(2, 2)


def test_roots_in_globals_closures_and_modules(monkeypatch):
    captured = torch.nn.Linear(2, 2)

    def function(x):
        return captured, GLOBAL_MODEL

    def training(source):
        return ItemSource(InstanceDictSource(source), "training")

    hooks = AttrSource(ModuleSource("torch.nn.modules.module"), "_global_forward_hooks")
    guards = [
        Guard(training(ClosureSource("captured")), "BOOL_MATCH", True),
        Guard(training(GlobalSource("GLOBAL_MODEL")), "BOOL_MATCH", True),
        Guard(hooks, "LENGTH", 0),
        Guard(GlobalSource("torch"), "ID_MATCH", torch),
        Guard(AttrSource(GlobalSource("torch"), "nn"), "ID_MATCH", torch.nn),
    ]
    program = native(guards, freevars=("captured",))
    for _ in range(3):
        assert agreed(program, (1,), function)
    assert [proved for _, _, proved in program.blocks] == [True] * len(program.blocks)
    GLOBAL_MODEL.eval()
    assert not agreed(program, (1,), function)
    GLOBAL_MODEL.train()
    captured.eval()
    assert not agreed(program, (1,), function)
    captured.train()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
    assert not agreed(program, (1,), function)
    handle.remove()
    assert agreed(program, (1,), function)
    monkeypatch.setattr(torch, "nn", torch)
    assert not agreed(program, (1,), function)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3, dtype=torch.bfloat16),
        lambda: torch.ones(2, 3, device="meta"),
        lambda: torch.ones(()),
        lambda: torch.ones(0, 4),
        lambda: torch.ones(1, 2, 1, 2, 1, 2, 1),
        lambda: torch.ones(4, 6)[1:, ::2],
        lambda: torch.ones(3).expand(2, 3),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, requires_grad=True),
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: (torch.ones(2, requires_grad=True) * 2)[:1],
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
)
def test_all_sorts_of_tensors_against_each_other(make):
    others = [make(), torch.ones(2), torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(2, requires_grad=True), 3]
    program = native([Guard(X, "TENSOR_MATCH", make())])
    assert agreed(program, (make(),))
    for other in others:
        agreed(program, (other,))


def test_requires_grad_is_read_as_torch_does():
    leaf, written = torch.ones(4, requires_grad=True), torch.ones(4)
    view = written[1:]
    plain = native([Guard(X, "TENSOR_MATCH", torch.ones(4))])
    plain_view = native([Guard(X, "TENSOR_MATCH", torch.ones(4)[1:])])
    assert agreed(plain, (written,)) and agreed(plain_view, (view,))
    written.mul_(leaf)
    assert not agreed(plain, (written,)) and not agreed(plain_view, (view,))
    for tensor in (leaf, leaf * 2, leaf.detach(), leaf[1:], (leaf * 2).detach_()):
        spec = native([Guard(X, "TENSOR_MATCH", TensorSpec.of(tensor))])
        assert agreed(spec, (tensor,))


def shape_program(expr, values):
    symbols = sorted(expr.free_symbols, key=str)
    sources = {"a": TensorPropertySource(X, "size", 0), "b": TensorPropertySource(X, "stride", 0), "k": Y}
    condition = ShapeExpr.of(expr, {symbol: sources[symbol.name] for symbol in symbols})
    spec = dataclasses.replace(TensorSpec.of(torch.ones(2)), sizes=(None,), strides=(None,))
    guards = [Guard(ShapeEnvSource(), "SHAPE", condition), Guard(X, "TENSOR_MATCH", spec)]
    return native(guards, ("x", "y"))


def test_shape_programs():
    a, b, k = sympy.symbols("a b k", integer=True)
    expressions = [
        sympy.Eq(sympy.Mod(a, 3), 1),
        sympy.And(sympy.Ge(a, 2), sympy.Le(a * b + k, 40)),
        sympy.Or(sympy.Lt(a - k, 0), sympy.Ne(b, 1)),
        sympy.Not(sympy.Gt(sympy.Max(a, k, 4), sympy.Min(b * 9, 6))),
        sympy.Gt(a * k * 2**40, 2**62 - 1),
        sympy.Eq(k * k, 2**80),
        sympy.Gt(a / 2, k / 3),
    ]
    values = [*range(-4, 5), 2**40, 2**62, -(2**63), 2**70, True, 1.5, None]
    for expr in expressions:
        program = shape_program(expr, values)
        for size, stride, value in itertools.product((0, 1, 2, 5, 7), (1, 2), values):
            x = torch.empty(64).as_strided((size,), (stride,))
            agreed(program, (x, value))


def test_death_is_seen_natively():
    class Local:
        pass

    value = Local()
    program = native([Guard(X, "ID_MATCH", value)])
    assert program((value,), f)
    del value
    assert program.dead and not program((Local(),), f)


def test_exceptions_miss_and_interrupts_pass():
    class Interrupted:
        def __len__(self):
            raise KeyboardInterrupt

    program = native([Guard(X, "LENGTH", 1)])
    assert not program((3,), f) and not program((), f)
    with pytest.raises(KeyboardInterrupt):
        program((Interrupted(),), f)
    with pytest.raises(TypeError):
        program([3], f)
    with pytest.raises(TypeError, match="by position"):
        program((3,), function=f)


def test_state_is_compared_again_after_any_change():
    program = native([])
    for _ in range(2):
        assert program((1,), f)
        with torch.no_grad():
            assert not program((1,), f) and not program((1,), f)
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        assert program((1,), f) and program((1,), f)
        torch.set_num_threads(threads)
    seen = []

    def elsewhere():
        with torch.inference_mode():
            seen.append(program((1,), f))
        seen.append(program((1,), f))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False, True] and program((1,), f)


def test_threads_and_changes():
    model, guards = layers(4)
    program = native(guards)
    wrong = []

    def work():
        wrong.extend(1 for _ in range(3000) if not program((model,), f))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(300):
        model[1].step = step
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_leaks():
    model, guards = layers(2)
    counted = [model, model[0], model[0].weight, model.__dict__, f]
    program = native(guards, inputs=[parameter_source(submodule_source(X, "0"), "weight")])
    program((model,), f)
    gc.collect()
    before = [sys.getrefcount(item) for item in counted]
    for _ in range(100):
        program((model,), f)
        program((1,), f)
        program.extract((model,), f)
        model[0].x = 1
    assert [sys.getrefcount(item) for item in counted] == before
    reference = weakref.ref(program)
    del program
    gc.collect()
    assert reference() is None
    assert [sys.getrefcount(item) for item in counted] == before


def test_probing_runs_no_backward_pass():
    """A forked process can run none once its parent's engine has started threads."""
    called = []

    def note(frame, event, function):
        if event == "c_call":
            called.append(function.__name__)

    sys.setprofile(note)
    try:
        probing._grad_probes()
    finally:
        sys.setprofile(None)
    assert "mul_" in called and "run_backward" not in called
