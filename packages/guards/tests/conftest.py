"""The table of cases: for every guard kind, values that hold and values that miss."""

import contextlib
import dataclasses
import functools
import sys
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Sized
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MappingProxyType

import pytest
import sympy
import torch

from framesmith_guards import (
    AttrSource,
    Guard,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ShapeEnvSource,
    ShapeExpr,
    Source,
    TensorPropertySource,
    TensorSpec,
)
from framesmith_guards.kinds.leaves import HAS_GRAD_DTYPE
from framesmith_guards.kinds.state import AUTOCAST_DEVICES, STATE_FIELDS
from framesmith_guards.sources import GlobalStateSource
from framesmith_guards.sources.caches import ABSENT, CachedCall, CallKey, Computed, Entries, Items
from framesmith_guards.values.refs import Ref

X, Y, Z = LocalSource("x"), LocalSource("y"), LocalSource("z")


@dataclass
class Case:
    """A guard, and arguments (x, y, z) for which it holds or misses, made for each test."""

    guard: Guard
    hold: list
    miss: list

    def __repr__(self):
        return self.guard.kind.name


def target(x, y=None, z=None):
    """The function whose calls are guarded."""
    return x


class Plain:
    """An object of a user's class."""

    def __init__(self, **members):
        self.__dict__.update(members)


class Wrapper(torch.Tensor):
    """A traceable wrapper subclass."""

    @staticmethod
    def __new__(cls, inner, scale):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, scale):
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self):
        return ["inner"], {"scale": self.scale}

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


KEEP = []


def kept(value):
    KEEP.append(value)
    return value


def advanced(iterator, steps):
    for _ in range(steps):
        next(iterator)
    return iterator


def moved(items, key):
    """An OrderedDict whose iteration ends with a key that its table has elsewhere."""
    found = OrderedDict(items)
    found.move_to_end(key)
    return found


def dead_reference():
    return weakref.ref(Plain())


def tensor_cases():
    x = torch.randn(2, 3)
    misses = [
        x.double(),
        torch.randn(3, 2),
        torch.randn(2, 3, 1),
        torch.randn(3, 2).t(),
        x.clone().requires_grad_(),
        torch.nn.Parameter(x, requires_grad=False),
        torch.empty(2, 3, device="meta"),
        x.to_sparse(),
        torch._neg_view(x),
        1,
        None,
    ]
    with torch.inference_mode():
        misses.append(torch.randn(2, 3))
    return [Case(Guard(X, "TENSOR_MATCH", x), [(x,), (torch.zeros(2, 3),)], [(m,) for m in misses])]


def leaf_cases():
    hooked, watched, no_leaf = (torch.ones(2, requires_grad=True) for _ in range(3))
    for tensor in (hooked, no_leaf):
        tensor.register_hook(lambda grad: None).remove()  # leaves an empty dict
    watched.register_hook(lambda grad: None)
    accumulated = torch.ones(2, requires_grad=True)
    accumulated.register_post_accumulate_grad_hook(lambda tensor: None)
    misses = [watched, accumulated, no_leaf * 2, torch.ones(2, dtype=torch.float64), 1, None]
    if HAS_GRAD_DTYPE:
        free = torch.ones(2, requires_grad=True)
        free.grad_dtype = None
        misses.append(free)
    holds = [torch.ones(2), hooked, torch.nn.Parameter(torch.ones(2, 2)), torch.ones(3, requires_grad=True)]
    return [Case(Guard(X, "PLAIN_LEAF", torch.float32), [(one,) for one in holds], [(one,) for one in misses])]


def open_tensor_case():
    x = torch.randn(2, 3)
    spec = dataclasses.replace(TensorSpec.of(x), sizes=(None, 3))
    holds = [(torch.randn(n, 3),) for n in (0, 1, 2, 7)]
    return Case(
        Guard(X, "TENSOR_MATCH", spec), holds, [(torch.randn(2, 4),), (torch.randn(3),), (torch.randn(3, 2).t(),)]
    )


def shape_case():
    a, b, c = sympy.symbols("a b c", integer=True)
    expr = sympy.And(sympy.Ge(a, 2), sympy.Eq(sympy.Mod(a, 2), 0), sympy.Eq(b, 2 * a), sympy.Ne(c, a))
    sources = {
        a: TensorPropertySource(X, "size", 0),
        b: TensorPropertySource(Y, "stride", 0),
        c: TensorPropertySource(Y, "storage_offset"),
    }

    def y(stride, offset=0):
        return torch.empty(64).as_strided((2, 2), (stride, 1), offset)

    return Case(
        Guard(ShapeEnvSource(), "SHAPE", ShapeExpr.of(expr, sources)),
        [(torch.empty(2), y(4)), (torch.empty(4), y(8, 3))],
        [(torch.empty(3), y(6)), (torch.empty(2), y(5)), (torch.empty(2), y(4, 2)), (torch.empty(0), y(0))],
    )


def equals_cases():
    rows = [
        (3, [True, 3.0, 4, "3", None]),
        (True, [1, False]),
        (2.5, [2, 2.25, float("nan")]),
        (0.0, [-0.0, 0, False]),
        (-0.0, [0.0]),
        (float("nan"), [0.0, float("inf")]),
        (complex(0.0, -0.0), [complex(0.0, 0.0), 0.0]),
        ("a", [b"a", "b", None]),
        (b"a", ["a"]),
        (None, [0, False]),
        ((1, (2, "x")), [(1, (2, "y")), [1, (2, "x")], (1, (2.0, "x")), (1, 2, "x")]),
        ([1, 2], [(1, 2), [1], [1, 2, 3]]),
        ({"a": 1, "b": 2}, [{"b": 2, "a": 1}, {"a": 1}, OrderedDict(a=1, b=2)]),
        ({1, 2}, [{1, 2.0}, {1}, frozenset({1, 2})]),
        (deque([1]), [deque([2]), [1]]),
        (range(0, 6, 2), [range(0, 5, 2), (0, 2, 4)]),
        (slice(1, None), [slice(1, 2), slice(1.0, None)]),
        (torch.float32, [torch.float64, None]),
        (torch.device("cpu"), [torch.device("meta"), "cpu"]),
        (torch.strided, [torch.sparse_coo]),
        (torch.channels_last, [torch.contiguous_format]),
        (torch.Size([2, 3]), [torch.Size([3, 2]), (2, 3)]),
        (sys.float_info, [tuple(sys.float_info)]),
        (int, [float, bool]),
        (..., [None]),
    ]
    return [Case(Guard(X, "EQUALS_MATCH", value), [(value,)], [(m,) for m in misses]) for value, misses in rows]


def object_cases():
    one, key = kept(Plain()), kept(Plain())

    def inner(): ...
    def other(): ...

    KEEP.append((inner, other))
    counted = {"a": 1, key: 2}
    return [
        Case(Guard(X, "TYPE_MATCH", Plain), [(Plain(),)], [(1,), (type("Plain", (Plain,), {})(),), (Plain,)]),
        Case(Guard(X, "TYPE_MATCH", int), [(5,)], [(True,), (5.0,)]),
        Case(Guard(X, "ID_MATCH", one), [(one,)], [(Plain(),), (None,)]),
        Case(Guard(X, "ID_MATCH", torch), [(torch,)], [(torch.nn,)]),
        Case(Guard(X, "NONE_MATCH"), [(None,)], [(0,), (False,)]),
        Case(Guard(X, "NOT_NONE"), [(0,), (one,)], [(None,)]),
        Case(Guard(X, "BOOL_MATCH", True), [(True,)], [(False,), (1,)]),
        Case(
            Guard(X, "LENGTH", 2),
            [([1, 2],), ({1: 1, 2: 2},), ("ab",), (LyingList([1, 2]),), (LyingDict(a=1, b=2),)],
            [([],), ((1,),), (3,), (LyingList(),), (LyingDict(a=1),)],
        ),
        Case(
            Guard(X, "DICT_KEYS", counted),
            [({"a": 0, key: 0},)],
            [({key: 0, "a": 0},), ({"a": 0},), ({"a": 0, key: 0, 1: 1},), ({"a": 0, Plain(): 0},), (["a", key],)],
        ),
        Case(Guard(X, "DICT_KEYS", {1: 0}), [({1: 5},)], [({True: 5},), ({1.0: 5},)]),
        Case(
            Guard(X, "NUMBERED_KEYS", (1, 0)),
            [(moved({3: 0, 9: 1}, 3),), (moved({1: 0, 0: 1}, 1),)],
            [(OrderedDict({3: 0, 9: 1}),), (moved({3: 0, True: 1}, 3),), (moved({3: 0}, 3),), ({3: 0, 9: 1},), (5,)],
        ),
        Case(Guard(X, "DICT_CONTAINS", "a"), [({"a": 1},), ({"a"},), (LyingDict(a=1),)], [({},), (5,), (LyingDict(),)]),
        Case(Guard(X, "DICT_NOT_CONTAINS", "a"), [({},), ({"b"},), (LyingDict(),)], [({"a": 1},), (LyingDict(a=1),)]),
        Case(Guard(X, "HASATTR", "weight"), [(Plain(weight=1),)], [(Plain(),), (3,)]),
        Case(Guard(X, "NO_HASATTR", "weight"), [(Plain(),), (3,)], [(Plain(weight=1),)]),
        Case(Guard(X, "FUNCTION_CODE", inner), [(inner,)], [(other,), (3,), (Plain(__code__=inner),)]),
        Case(Guard(X, "WEAKREF_ALIVE"), [(weakref.ref(one),)], [(dead_reference(),), (5,), (Plain,)]),
        *cache_cases(),
        Case(Guard(X, "DUPLICATE_INPUT", Y), [(one, one)], [(one, key), (1, None)]),
        Case(Guard(X, "NOT_ALIASED", Y), [(one, key)], [(one, one)]),
        Case(Guard(X, "NOT_ALIASED", (InstanceDictSource(X),) * 2), [], [(Plain,), (one,)]),
        Case(Guard(X, "NOT_ALIASED", (Y, Z)), [(one, key, 3)], [(one, key, one), (one, key, key), (one, one, key)]),
        Case(Guard(ItemSource(X, "a"), "EQUALS_MATCH", 1), [({"a": 1},)], [({"a": 2},), ({},), (None,)]),
    ]


def cache_cases():
    @functools.lru_cache(2)
    def filled(*args, **kwargs):
        return RESULTS.get(args, 0)

    for args in RESULTS:
        filled(*args)

    def case(args, result, holds):
        guard = Guard(X, "CACHED_CALL", CachedCall(Ref(filled), CallKey(args), result))
        return Case(guard, [(filled,)] if holds else [], [(len,), (5,)] if holds else [(filled,)])

    numbers = Computed("n + 1", (AttrSource(Y, "n"),), lambda n: n + 1)
    sized = CachedCall(Ref(filled), CallKey((numbers,)), Items(list, (numbers,)))
    return [
        case(("a",), Items(list, (1, Entries((("k", 2),)))), True),
        case(("a",), Items(list, (1, Entries((("k", 3),)))), False),
        case(("a",), [1], False),
        case(("a",), ABSENT, False),
        case(("other",), ABSENT, True),
        case(("other",), 5, True),
        Case(Guard(X, "CACHED_CALL", sized), [(filled, Plain(n=1)), (filled, Plain(n=7))], [(filled, Plain(n=0))]),
    ]


#: The contents of the cache of these cases.
RESULTS = {("a",): [1, {"k": 2}], (1,): [5]}


def iterator_cases():
    return [
        Case(
            Guard(X, "TUPLE_ITERATOR", 2),
            [(iter((1, 2)),), (advanced(iter([1, 2, 3]), 1),)],
            [(iter((1,)),), (iter({1: 1, 2: 2}),), ((1, 2),)],
        ),
        Case(
            Guard(X, "RANGE_ITERATOR", range(1, 4)),
            [(iter(range(1, 4)),), (advanced(iter(range(4)), 1),)],
            [(iter(range(4)),), (iter(range(1, 4, 2)),), (range(1, 4),), (iter([1, 2, 3]),)],
        ),
    ]


def more_tensor_cases():
    x = torch.randn(2, 3)
    inner = torch.ones(2)
    return [
        Case(Guard(X, "DISPATCH_KEYS", x), [(torch.zeros(5),)], [(torch._neg_view(x),), (x.to("meta"),), (1,)]),
        Case(
            Guard(X, "SUBCLASS_METADATA", Wrapper(inner, 2)),
            [(Wrapper(inner, 2),)],
            [(Wrapper(inner, 3),), (inner,)],
        ),
    ]


class Animal:
    def speak(self):
        return 1


def animals(**entries):
    """A class called Dog over Animal, and one that differs from it by these entries."""
    return type("Dog", (Animal,), {"legs": 4}), type("Dog", (Animal,), {"legs": 4, **entries})


class Meta(type):
    """A metaclass that lies about what a check must not trust."""

    __mro__ = ()

    @property
    def __dict__(cls):
        return {}


def class_cases():
    dog, other = animals()
    odd = Meta("Odd", (Animal,), {})
    KEEP.extend((dog, odd))
    return [
        Case(Guard(X, "CLASS_LAYOUT", dog), [(dog,)], [(other,), (Animal,), (int,), (dog(),), (None,)]),
        Case(Guard(X, "CLASS_LAYOUT", odd), [(odd,)], [(Animal,), (Meta,)]),
        Case(Guard(X, "CLASS_LAYOUT", bool), [(bool,)], [(int,), (True,)]),
        Case(Guard(X, "NOT_SUBCLASS", Sized), [(int,), (dog,)], [(list,), (Sized,), (3,), (None,)]),
        Case(
            Guard(X, "DICT_KEYS", MappingProxyType({"a": 1})),
            [(MappingProxyType({"a": 2}),), ({"a": 3},)],
            [(MappingProxyType({"b": 1}),), (MappingProxyType(Forger(a=1)),)],
        ),
    ]


class LyingList(list):
    """A list that says it has two items."""

    def __len__(self):
        return 2


class LyingDict(dict):
    """A dict that says it has two items, and lacks none or all."""

    def __len__(self):
        return 2

    def __contains__(self, key):
        return not dict.__contains__(self, key)

    def __getitem__(self, key):
        return key


class Forger(UserDict):
    """A mapping that is no dict."""


def storage_cases():
    base = torch.zeros(10)
    low, middle, high = base[:4], base[3:7], base[7:]
    evens, odds = base[::2], base[1::2]
    memory = bytearray(16)
    outside = torch.frombuffer(memory, dtype=torch.float32), torch.frombuffer(memory, dtype=torch.float32)
    return [
        Case(
            Guard(X, "SAME_STORAGE", Y),
            [(base, high), (low, high), (evens, odds), (base, base.detach()), (base, base.view(2, 5))],
            [(base, base.clone()), (base, 1), (1, base), outside],
        ),
        Case(
            Guard(X, "NO_OVERLAP", (Y, Z)),
            [
                (low, high, high),
                (base, base.clone(), base[:0]),
                (base[:0], base, base),
                (base, base.to("meta"), low[:0]),
            ],
            [(low, middle, high), (middle, low, high), (high, low, base), (base, high, base.clone())]
            + [(evens, odds, high), (*outside, base), (low, None, high), (1, low, high)],
        ),
        Case(
            Guard(X, "ALL_DISJOINT", (Y, Z)),
            [
                (high, low, base.clone()),
                (base[:0], base, base[:0]),
                (base, base.to("meta"), base.to("meta")),
                (base[4:5], base[3:4], base[5:]),
            ],
            [(high, low, middle), (low, high, base), (high.clone(), base, base), (evens, base.clone(), odds)]
            + [(base.clone(), *outside), (low, None, high), (1, low, high)],
        ),
        Case(
            Guard(X, "NO_OVERLAP", Y),
            [(base.view(2, 5)[:, :0], base), (base.double(), base)],
            [(base.view(2, 5).t(), base[9:]), (base.view(torch.float64)[1:], base[3:4])],
        ),
    ]


def all_cases():
    """Every case but those of global state."""
    return [
        *tensor_cases(),
        *leaf_cases(),
        open_tensor_case(),
        *more_tensor_cases(),
        shape_case(),
        *equals_cases(),
        *object_cases(),
        *iterator_cases(),
        *class_cases(),
        *storage_cases(),
    ]


class FunctionMode(torch.overrides.TorchFunctionMode):
    """A torch-function mode that does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    """A torch-dispatch mode that does nothing."""


class _Setting:
    def __init__(self, read, write, value):
        self.read, self.write, self.value = read, write, value

    def __enter__(self):
        self.before = self.read()
        self.write(self.value)

    def __exit__(self, *error):
        self.write(self.before)


def tracing_state():
    """The state of a run of torch.jit.trace, which is over."""
    states = []

    def traced(x):
        states.append(torch._C._get_tracing_state())
        return x + 1

    torch.jit.trace(traced, (torch.ones(1),), check_trace=False)
    return states[0]


class InferenceWithGrad(contextlib.ExitStack):
    """Inference mode with grad mode on, the only sign that nothing changed."""

    def __enter__(self):
        self.enter_context(torch.inference_mode())
        self.enter_context(torch.enable_grad())
        return self


class InGrad:
    """Inside torch.func.grad."""

    def __enter__(self):
        torch._C._functorch._grad_increment_nesting()

    def __exit__(self, *error):
        torch._C._functorch._grad_decrement_nesting()


def state_changes():
    """For each state kind, contexts that change what it reads."""
    other_threads = 2 if torch.get_num_threads() != 2 else 1

    def identity(t):
        return t

    return {
        "GRAD_MODE": [torch.no_grad()],
        "INFERENCE_MODE": [torch.inference_mode(), InferenceWithGrad()],
        "AUTOCAST": [
            torch.autocast("cpu", torch.bfloat16),
            torch.autocast("cpu", torch.float16, cache_enabled=False),
            _Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
            *(
                _Setting(partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device), True)
                for device in AUTOCAST_DEVICES
            ),
        ],
        "DEFAULT_DTYPE": [_Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64)],
        "DEFAULT_DEVICE": [torch.device("meta")],
        "DETERMINISTIC": [
            _Setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
        ],
        "TORCH_FUNCTION_MODES": [FunctionMode()],
        "TORCH_FUNCTIONS": [torch._C.DisableTorchFunctionSubclass(), torch._C.DisableTorchFunction()],
        "TORCH_DISPATCH_MODES": [DispatchMode()],
        "JIT_TRACING": [_Setting(torch._C._get_tracing_state, torch._C._set_tracing_state, tracing_state())],
        "FUNCTORCH_STACK": [InGrad()],
        "SAVED_TENSOR_HOOKS": [torch.autograd.graph.saved_tensors_hooks(identity, identity)],
        "MATMUL_PRECISION": [
            _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
            _Setting(
                partial(getattr, torch.backends.cuda.matmul, "fp32_precision"),
                partial(setattr, torch.backends.cuda.matmul, "fp32_precision"),
                "tf32",
            ),
        ],
        "NUM_THREADS": [_Setting(torch.get_num_threads, torch.set_num_threads, other_threads)],
    }


def state_guard(kind):
    """A guard that one piece of state stays as it is."""
    [field] = [field for field in STATE_FIELDS if field.kind == kind]
    return Guard(GlobalStateSource(), kind, field.read())


@pytest.fixture
def cases():
    return all_cases()


@pytest.fixture
def changes():
    return state_changes()


@pytest.fixture
def make_state_guard():
    return state_guard


@pytest.fixture
def guarded() -> FunctionType:
    return target


@pytest.fixture
def plain():
    return Plain


@pytest.fixture
def xyz() -> tuple[Source, Source, Source]:
    return X, Y, Z
