"""Continuations: their parameters, and equal results of resuming."""

import sys
import types
from types import FunctionType

import pytest

from framesmith_bytecode import (
    ITERATOR_SLOTS,
    UNBOUND,
    Analyses,
    ContinuationError,
    Instr,
    decode,
    make_continuation,
    split,
    verify,
    why_no_continuation,
)
from framesmith_bytecode.analyses.slots import HANDLED
from framesmith_bytecode.analyses.walk import stack_states

LOG = []


class Manager:
    def __enter__(self):
        LOG.append("enter")
        return 7

    def __exit__(self, kind, value, trace):
        LOG.append(("exit", kind))
        return kind is KeyError


def loops(a, b=2, *c, k=1, **d):
    s = 0
    for i in range(a):
        if i % 2:
            continue
        for j in [1, 2]:
            s += i * j + b
    return s, c, k, d


def managed(n):
    out = []
    for i in range(n):
        try:
            with Manager() as v:
                if i == 1:
                    raise KeyError
                if i == 2:
                    raise ValueError(i)
                out.append(v)
        except ValueError as e:
            out.append(str(e))
        finally:
            out.append("f")
    return out


def cells(n):
    c = 0

    def g():
        nonlocal c
        c += n
        return c

    made = [g() for _ in range(3)]
    return (
        made,
        c,
        print.__name__.upper().lower(),
        max(1, n, *made, key=lambda x: -x),
        [(lambda: q)() for q in range(3)],
    )


def unbound(n):
    if n > 1:
        x = 5
    y = [x for x in range(2)]
    try:
        return x, y
    except UnboundLocalError as error:
        return str(error), y


def empty_cell(n):
    if n:
        x = 1
    try:
        return (lambda: x)(), x
    except NameError as error:
        first = type(error)
    try:
        return x
    except NameError as error:
        return first, type(error)


def shadowed(xs):
    x = 10
    get = lambda: x  # noqa: E731
    ys = [(x, [x for x in range(x)], (lambda: x)()) for x in xs]
    x += 1
    try:
        zs = {x: [7 // x for x in [x]] for x in xs}
    except ZeroDivisionError:
        zs = x
    return ys, zs, get(), x


def shadowed_while_empty(xs):
    out = [x for x in xs]
    get = lambda: x  # noqa: E731
    try:
        get()
    except NameError as error:
        out.append(type(error))
    try:
        out.append(x)
    except NameError as error:
        out.append(type(error))
    x = {x for x in xs if x}
    return out, get()


def emptied(n):
    x = n

    def empty():
        nonlocal x
        del x

    try:
        if n:
            empty()
        return x
    except NameError as error:
        return type(error), str(error)


def matched(p):
    match p:
        case [a, b, *r]:
            return a, b, r
        case {"k": v}:
            return v
    while True:
        try:
            p = p - 1
            if p < 0:
                break
        except TypeError:
            raise RuntimeError("x") from None
    return f"{p!r:>5}{p}"


def groups(p):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError as e:
            LOG.append(len(e.exceptions))
    except* KeyError:
        LOG.append("k")
    try:
        raise ValueError(1)
    except ValueError as e:
        try:
            raise KeyError from e
        except KeyError:
            LOG.append(type(sys.exc_info()[1]))
        LOG.append(type(sys.exc_info()[1]))
    LOG.append(sys.exc_info())
    return 1


class Base:
    def method(self, a):
        return a


class Derived(Base):
    def method(self, a):
        b = [super(Derived, self).method(x) for x in (1, 2)]
        return super().method(a) + 1, b

    def simple(self, a):
        b = a + 1
        return super().method(b)

    def captured(self, a):
        inner = lambda: self  # noqa: E731
        first = super().method(a)
        return inner() is self, first, super().method(a + 1)

    def replaced(self, a):
        inner = lambda: self  # noqa: E731
        first = super().method(a)
        self = Derived()
        return inner() is self, first, super().method(a + 1)

    def let_go(self, a):
        inner = lambda: self  # noqa: E731, F821
        del self
        try:
            return super().method(a)
        except RuntimeError as error:
            return str(error), inner


def sees_locals(a):
    b = 2
    c = b + 1
    return sorted(n for n in locals() if not n.startswith("_")), c


RUNS = [
    (loops, [(5,), (6, 7, 8, 9)]),
    (managed, [(4,)]),
    (cells, [(3,)]),
    (unbound, [(1,), (3,)]),
    (empty_cell, [(0,), (1,)]),
    (shadowed, [([1, 2],), ([2, 0],), ([],)]),
    (shadowed_while_empty, [([1, 0],), ([],)]),
    (emptied, [(0,), (1,)]),
    (matched, [([1, 2, 3],), ({"k": 1},), (3,), ("s",)]),
    (groups, [(0,)]),
    (Derived.method, [(Derived(), 3)]),
    (Derived.simple, [(Derived(), 3)]),
    (Derived.captured, [(Derived(), 3)]),
    (Derived.replaced, [(Derived(), 3)]),
    (sees_locals, [(1,)]),
]


def outcome(function, arguments):
    LOG.clear()
    try:
        result = ("returned", function(*arguments))
    except Exception as error:
        result = ("raised", type(error), str(error))
    return result, list(LOG)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("function", "runs"), RUNS, ids=lambda value: getattr(value, "__name__", ""))
def test_cut_at_every_place(function, runs):
    bytecode = decode(function.__code__)
    expected = [outcome(function, arguments) for arguments in runs]
    cuts = 0
    for index, depth in enumerate(stack_states(bytecode).before):
        if depth is None or why_no_continuation(bytecode, index, own_cells=True):
            continue
        prefix, continuation = split(bytecode, index)
        if index % 4 == 0:
            verify(decode(prefix))
            verify(continuation.bytecode)
        halved = FunctionType(prefix, function.__globals__, "f", function.__defaults__, function.__closure__)
        halved.__kwdefaults__ = function.__kwdefaults__
        assert [outcome(halved, arguments) for arguments in runs] == expected, bytecode.instructions[index]
        cuts += 1
    assert cuts > 10


@pytest.mark.parametrize("function", [shadowed, shadowed_while_empty, Derived.replaced], ids=lambda f: f.__name__)
def test_no_place_is_refused(function):
    known = Analyses(decode(function.__code__))
    reached = [index for index, depth in enumerate(known.stack_states.before) if depth is not None]
    assert [why_no_continuation(known, index, own_cells=True) for index in reached] == [None] * len(reached)


@pytest.mark.parametrize("function", [loops, shadowed, Derived.replaced], ids=lambda f: f.__name__)
def test_items_of_loops_come_to_each_other(function):
    known = Analyses(decode(function.__code__))
    count = len(known.bytecode.instructions)
    after = [known.kept_items(index) for index in range(count)]
    for index in range(count):
        others = {at for at in range(count) if at != index and at in after[index] and index in after[at]}
        assert known.loop_items(index) - {index} == others


def index_of(bytecode, op, arg=None):
    return next(
        i
        for i, item in enumerate(bytecode.instructions)
        if isinstance(item, Instr) and item.op == op and (arg is None or item.arg == arg)
    )


def test_parameters_of_a_loop():
    bytecode = decode(loops.__code__)
    continuation = make_continuation(
        bytecode, index_of(bytecode, "STORE_FAST", "j"), bound={"a", "b", "c", "k", "d", "s", "i"}
    )
    assert [(p.kind, p.source) for p in continuation.parameters] == [
        ("stack", 0), ("stack", ITERATOR_SLOTS), ("stack", 2 * ITERATOR_SLOTS),
        ("local", "b"), ("local", "k"), ("local", "c"), ("local", "d"), ("local", "s"), ("local", "i"),
    ]  # fmt: skip
    assert not any(p.maybe_missing for p in continuation.parameters)
    resumed = FunctionType(continuation.code, globals())
    assert resumed(iter([4]), iter([10]), 1, 2, "k", (), {}, 0, 3) == (53, (), "k", {})


def test_null_slots_are_put_back():
    def pending(f, x):
        return f(x, 1)

    bytecode = decode(pending.__code__)
    index = index_of(bytecode, "LOAD_CONST", 1)
    for nulls in (
        None,
        {index_of(bytecode, "PUSH_NULL") - 1 and 0} if bytecode.instructions[1].op == "PUSH_NULL" else {1},
    ):
        continuation = make_continuation(bytecode, index, null_slots=nulls)
        assert len(continuation.parameters) == 2
        assert FunctionType(continuation.code, {})(divmod, 9) == (9, 0)


def test_unbound_is_preserved():
    bytecode = decode(unbound.__code__)
    index = index_of(bytecode, "BUILD_TUPLE", 2) - 2
    continuation = make_continuation(bytecode, index)
    (x,) = [p for p in continuation.parameters if p.source == "x"]
    assert x.maybe_missing
    resumed = FunctionType(continuation.code, globals())
    arguments = {"x": UNBOUND, "y": "y"}
    message, y = resumed(*(arguments[p.source] for p in continuation.parameters))
    assert "'x'" in message
    assert y == "y"
    known = make_continuation(bytecode, index, bound={"y"})
    assert [p.source for p in known.parameters] == ["y"]
    assert "'x'" in FunctionType(known.code, globals())("y")[0]


def test_cells_are_free_variables():
    bytecode = decode(cells.__code__)
    index = index_of(bytecode, "LOAD_DEREF", "c")
    continuation = make_continuation(bytecode, index)
    assert set(continuation.freevars) <= {"c", "n", "g", "q"}
    assert "c" in continuation.freevars
    assert continuation.code.co_freevars == continuation.freevars


def test_only_cells_that_may_be_empty_stay_cells():
    bytecode = decode(empty_cell.__code__)
    with pytest.raises(ContinuationError, match="the cell of 'x' may be read while it is empty"):
        make_continuation(bytecode, 0)
    continuation = make_continuation(bytecode, 0, own_cells=True)
    assert continuation.bytecode.cellvars == ["x"]
    assert continuation.code.co_freevars == continuation.freevars == ("x",)
    resumed = FunctionType(continuation.code, globals(), closure=(types.CellType(),))
    assert resumed(0) == empty_cell(0) == (NameError, UnboundLocalError)
    bytecode = decode(cells.__code__)
    continuation = make_continuation(bytecode, index_of(bytecode, "LOAD_DEREF", "c"), own_cells=True)
    assert "c" not in continuation.bytecode.cellvars


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="on 3.11 comprehensions are functions of their own")
def test_a_comprehensions_variable_in_the_slot_of_a_cell():
    bytecode = decode(shadowed.__code__)
    index = index_of(bytecode, "LOAD_CONST", 7)
    with pytest.raises(ContinuationError, match="variable stands where the cell of 'x' belongs"):
        make_continuation(bytecode, index)
    continuation = make_continuation(bytecode, index, own_cells=True)
    (variable,) = [p for p in continuation.parameters if p.source == "x"]
    assert (variable.kind, variable.maybe_missing) == ("local", False)
    assert "x" not in continuation.freevars
    (saved,) = [p for p in continuation.parameters if p.name.startswith(".cell_")]
    assert saved.kind == "stack"
    assert make_continuation(bytecode, index, bound={"xs", "get"}, own_cells=True).parameters[-1].source != "x"


def test_continuations_of_continuations_of_shadowed_cells():
    known = Analyses(decode(shadowed.__code__))
    expected = shadowed([2, 1])
    refused = set()
    for index in range(0, len(known.bytecode.instructions), 3):
        if known.stack_states.before[index] is None:
            continue
        first = split(known, index)
        again = Analyses(decode(first.continuation.code))
        reached = [i for i, depth in enumerate(again.stack_states.before) if depth is not None]
        for second in reached[:: len(reached) // 7]:
            refused.add(why_no_continuation(again, second, own_cells=True))
            if why_no_continuation(again, second, own_cells=True) is None:
                swapped = {first.continuation.code: split(again, second).prefix}
                consts = tuple(swapped.get(item, item) for item in first.prefix.co_consts)
                assert consts != first.prefix.co_consts
                assert FunctionType(first.prefix.replace(co_consts=consts), globals())([2, 1]) == expected
    # The second reason: in the instructions that take over the cell, both are in use.
    assert refused <= {None, "'x' is both a cell and a free variable of the function"}


def test_super_gets_its_object_first():
    bytecode = decode(Derived.simple.__code__)
    continuation = make_continuation(bytecode, index_of(bytecode, "STORE_FAST", "b"))
    assert (continuation.parameters[0].kind, continuation.parameters[0].source) == ("local", "self")
    captured = decode(Derived.captured.__code__)
    second = make_continuation(captured, index_of(captured, "STORE_FAST", "first"))
    assert (second.parameters[0].kind, second.parameters[0].source) == ("contents", "self")


def test_stack_values_are_let_go():
    """A continuation must not keep stack values alive longer than the function would."""
    import weakref

    class Thing:
        pass

    def use(thing, probe):
        return (thing, probe)[1]() is None

    bytecode = decode(use.__code__)
    continuation = make_continuation(bytecode, index_of(bytecode, "BUILD_TUPLE"))
    resumed = FunctionType(continuation.code, {})
    thing = Thing()
    reference = weakref.ref(thing)
    names = continuation.code.co_varnames[: continuation.code.co_argcount]
    assert all(name.startswith("__stack_") for name in names)
    assert resumed(thing, reference) is False
    ops = [item.op for item in continuation.bytecode.instructions if isinstance(item, Instr)]
    assert [op for op in ops if "FAST" in op] == ["LOAD_FAST", "DELETE_FAST", "LOAD_FAST", "DELETE_FAST"]


def test_continuation_of_a_continuation():
    bytecode = decode(loops.__code__)
    first = make_continuation(bytecode, index_of(bytecode, "GET_ITER"))
    again = decode(first.code)
    second = split(again, index_of(again, "STORE_FAST", "j"))
    resumed = FunctionType(second.prefix, globals())
    local = {"a": 3, "b": 2, "c": (), "k": 1, "d": {}, "s": 0}
    arguments = [range(3) if p.kind == "stack" else local[p.source] for p in first.parameters]
    assert resumed(*arguments) == loops(3)


def generates(a):
    yield a


class Body:
    x = 1


def test_refusals():
    with pytest.raises(ContinuationError, match="generators and coroutines keep their own frame"):
        make_continuation(decode(generates.__code__), 3)
    module = compile("x = 1\ny = 2", "m", "exec")
    with pytest.raises(ContinuationError, match="only functions can be resumed"):
        make_continuation(decode(module), 1)
    with pytest.raises(ContinuationError, match="index 1000 is outside"):
        make_continuation(decode(loops.__code__), 1000)
    dead = decode(loops.__code__)
    dead.instructions += [Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")]
    with pytest.raises(ContinuationError, match="no path leads here"):
        make_continuation(dead, len(dead.instructions) - 1)
    with pytest.raises(ContinuationError, match=r"null slots \[4\] of a stack of depth 0"):
        make_continuation(decode(loops.__code__), 0, null_slots={4})


def test_refusals_of_super():
    bytecode = decode(Derived.let_go.__code__)
    index = index_of(bytecode, "DELETE_DEREF", "self") + 1
    with pytest.raises(ContinuationError, match="the cell of its argument 'self' may be empty"):
        make_continuation(bytecode, index, own_cells=True)
    bytecode = decode(Derived.replaced.__code__)
    with pytest.raises(ContinuationError, match="argument 'self' is a cell that is assigned to"):
        make_continuation(bytecode, index_of(bytecode, "RETURN_VALUE"))


def test_names_and_lines():
    bytecode = decode(loops.__code__)
    continuation = make_continuation(bytecode, index_of(bytecode, "BUILD_TUPLE"))
    line = loops.__code__.co_firstlineno + 7
    assert continuation.code.co_name == "loops"
    assert continuation.code.co_qualname == f"loops.<resumed at line {line}>"
    assert continuation.code.co_filename == loops.__code__.co_filename
    assert isinstance(continuation.code, types.CodeType)


def recurses():
    try:
        return recurses()
    except RecursionError as error:
        return str(error)


def test_handled_exceptions_are_restored_when_the_continuation_cannot_be_called():
    """At the recursion limit the call of a continuation fails inside an except block that is left by it."""
    whole = recurses.__code__
    known = Analyses(decode(whole))
    states = known.stack_states
    caught = [i for i, kinds in enumerate(map(states.kinds, range(len(states.before)))) if HANDLED in kinds]
    assert len(caught) > 5
    try:
        for index in caught:
            recurses.__code__ = split(known, index).prefix
            try:
                recurses()
            except RecursionError:
                pass
            assert sys.exc_info() == (None, None, None), known.bytecode.instructions[index]
    finally:
        recurses.__code__ = whole


def enters(x):
    with Manager() as v:
        y = x + v
        z = y
    return z


def test_an_interrupt_at_the_start_of_a_continuation_goes_to_its_handler():
    """Signals are served at RESUME; a trace function that raises there simulates them."""
    known = Analyses(decode(enters.__code__))
    first = index_of(known.bytecode, "BEFORE_WITH") + 1
    last = index_of(known.bytecode, "STORE_FAST", "z")

    def trace(frame, event, argument):
        if "resumed" in frame.f_code.co_qualname:
            raise KeyboardInterrupt

    before = sys.gettrace()
    for index in range(first, last + 1):
        LOG.clear()
        halved = FunctionType(split(known, index).prefix, globals())
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                halved(1)
        finally:
            sys.settrace(before)
        assert LOG == ["enter", ("exit", KeyboardInterrupt)], known.bytecode.instructions[index]


def test_many_slots_that_may_be_null_are_restored_without_branches():
    names = ", ".join(f"v{i}" for i in range(60))
    namespace = {}
    exec(f"def many(xs):\n    return [({names}) for {names} in xs]", namespace)
    known = Analyses(decode(namespace["many"].__code__))
    rows = [tuple(range(60)), tuple(range(60, 120))]
    deep = [index for index, depth in enumerate(known.stack_states.before) if depth is not None and depth >= 60]
    for index in deep[::40]:
        prefix, continuation = split(known, index)
        assert FunctionType(prefix, {})(rows) == rows
        ops = [item.op for item in continuation.bytecode.instructions if isinstance(item, Instr)]
        assert ops.count("PUSH_NULL") <= 2


def test_a_variable_that_only_a_handler_binds_is_handed_over():
    """Handlers stand at the end of the code, behind what runs after them."""

    def handled(divisor):
        try:
            divisor = 1 / divisor
        except ZeroDivisionError as error:
            seen = error
        text = ""
        for argument in seen.args:
            text += argument
        return text

    known = Analyses(decode(handled.__code__))
    for index, depth in enumerate(known.stack_states.before):
        if depth is not None:
            assert FunctionType(split(known, index).prefix, globals())(0) == "division by zero", index
