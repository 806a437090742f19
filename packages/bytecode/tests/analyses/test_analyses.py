"""Liveness, control flow, unbound locals and NULL slots of small functions, computed by hand."""

from framesmith_bytecode import Bytecode, Instr, Label, decode, problems
from framesmith_bytecode.analyses.bound import BoundAnalysis, cells_bound, possibly_unbound
from framesmith_bytecode.analyses.cfg import control_flow, reachable
from framesmith_bytecode.analyses.liveness import liveness, observes_locals
from framesmith_bytecode.analyses.slots import NULL, OBJECT
from framesmith_bytecode.analyses.spans import Span, innermost
from framesmith_bytecode.analyses.walk import stack_states
from framesmith_bytecode.cpython.exception_table import read_exception_table, write_exception_table


def index_of(bytecode, op, arg=None):
    return next(
        i
        for i, item in enumerate(bytecode.instructions)
        if isinstance(item, Instr) and item.op == op and (arg is None or item.arg == arg)
    )


def loop(a, b, unused):
    total = 0
    for x in a:
        total += x
    last = b
    return total, last


def test_liveness_in_a_loop():
    bytecode = decode(loop.__code__)
    live = liveness(bytecode)
    assert live.before(0) == {"a", "b"}
    assert live.before(index_of(bytecode, "FOR_ITER")) == {"total", "b"}
    assert live.before(index_of(bytecode, "STORE_FAST", "last")) == {"total"}
    assert live.before(index_of(bytecode, "RETURN_VALUE")) == frozenset()


def handled(a):
    kept = a
    try:
        a.method()
    except ValueError:
        return kept
    return None


def test_handlers_keep_variables_alive():
    bytecode = decode(handled.__code__)
    assert liveness(bytecode).before(index_of(bytecode, "LOAD_METHOD")) == {"kept"}


def celled(a, b):
    def inner():
        return a

    a = b
    return inner


def test_cells_are_alive_where_touched():
    bytecode = decode(celled.__code__)
    live = liveness(bytecode)
    assert live.before(index_of(bytecode, "STORE_DEREF")) == {"a", "inner"}
    assert live.before(index_of(bytecode, "RETURN_VALUE")) == frozenset()


def test_observers_of_locals():
    assert observes_locals(decode((lambda: locals()).__code__).instructions)
    assert not observes_locals(decode(loop.__code__).instructions)
    for look in (lambda: vars(), lambda a: dir(*a), lambda a: (vars, vars(a)), lambda a, b: vars(a if b else b)):
        assert observes_locals(decode(look.__code__).instructions)
    for look in (lambda a: vars(a), lambda a: [dir(vars(a)), vars(a.b(1))], lambda a: a(x=vars(a[0]))):
        assert not observes_locals(decode(look.__code__).instructions)


def sometimes(flag):
    if flag:
        x = 1
    y = 2
    del y
    try:
        x
    except NameError:
        pass
    return x


def test_unbound_locals():
    bytecode = decode(sometimes.__code__)
    states = stack_states(bytecode)
    end = index_of(bytecode, "RETURN_VALUE")
    analysis = BoundAnalysis(bytecode, states)
    assert analysis.before(0) == {"x", "y"}
    assert analysis.before(end) == {"y"}
    assert analysis.before(index_of(bytecode, "DELETE_FAST")) == {"x"}
    plain = decode(loop.__code__)
    assert possibly_unbound(plain, stack_states(plain)) == set()


def test_nulls_on_the_stack():
    def calls(f, x):
        return f(x.method(1), [x, f(2)])

    bytecode = decode(calls.__code__)
    kinds = stack_states(bytecode).kinds
    assert kinds(index_of(bytecode, "LOAD_CONST", 2)).count(NULL) == 2
    assert kinds(index_of(bytecode, "RETURN_VALUE")) == [OBJECT]
    assert NULL | OBJECT in kinds(index_of(bytecode, "LOAD_CONST", 1))


def test_blocks_of_a_loop():
    blocks = control_flow(decode(loop.__code__))
    header = next(b for b in blocks if b.jumps_to is not None and b.falls_to is not None)
    body = blocks[header.falls_to]
    assert blocks[body.jumps_to].start <= header.start
    assert reachable(blocks, [0]) == set(range(len(blocks)))
    assert blocks[-1].successors == []


def test_blocks_know_their_handlers():
    bytecode = decode(handled.__code__)
    blocks = control_flow(bytecode)
    call = next(b for b in blocks if b.start <= index_of(bytecode, "LOAD_METHOD") < b.end)
    assert [bytecode.instructions[i].op for i in range(blocks[call.raises_to[0]].start, blocks[call.raises_to[0]].end)
            if isinstance(bytecode.instructions[i], Instr)][0] == "PUSH_EXC_INFO"  # fmt: skip


def test_unreachable_blocks():
    end = Label()
    items = [Instr("JUMP", end), Instr("NOP"), end, Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")]
    blocks = control_flow(Bytecode("f", items))
    assert reachable(blocks, [0]) == {0, 2}


def test_exception_table_numbers():
    from framesmith_bytecode.cpython.exception_table import Entry

    entries = [Entry(0, 5, 70, 0, False), Entry(5, 4100, 300000, 63, True), Entry(4100, 4101, 2, 64, False)]
    assert read_exception_table(write_exception_table(entries)) == entries


def test_innermost_spans():
    spans = [Span(0, 10, 0), Span(2, 8, 1), Span(3, 4, 2), Span(12, 12, 3), Span(2, 8, 4)]
    assert innermost(spans) == [
        Span(0, 2, 0), Span(2, 3, 4), Span(3, 4, 2), Span(4, 8, 4), Span(8, 10, 0),
    ]  # fmt: skip


def test_a_slot_is_raw_if_it_may_be():
    """A cell taken out of its slot on one path only must not be trusted behind the join, whichever path comes first."""
    for first, second in (("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE")):
        away, back = Label(), Label()
        items = [
            Instr("RESUME", 0), Instr("LOAD_FAST", "a"), Instr(first, away),
            Instr("LOAD_FAST_AND_CLEAR", "c"), Instr("STORE_FAST", "b"), away,
            Instr("LOAD_FAST", "a"), Instr(second, back), Instr("NOP"), back,
            Instr("LOAD_DEREF", "c"), Instr("RETURN_VALUE"),
        ]  # fmt: skip
        bytecode = Bytecode("f", items, argcount=1, varnames=["a", "b"], cellvars=["c"])
        assert "a comprehension's variable stands where the cell belongs" in problems(bytecode)[0]


def test_a_saved_cell_that_is_put_back_is_a_cell_again():
    items = [
        Instr("RESUME", 0), Instr("LOAD_FAST_AND_CLEAR", "c"), Instr("LOAD_CONST", 1), Instr("STORE_FAST", "c"),
        Instr("LOAD_FAST", "c"), Instr("SWAP", 2), Instr("STORE_FAST", "c"), Instr("LOAD_DEREF", "c"),
        Instr("BUILD_TUPLE", 2), Instr("RETURN_VALUE"),
    ]  # fmt: skip
    bytecode = Bytecode("f", items, varnames=["c"], cellvars=["c"])
    assert list(map(bool, stack_states(bytecode).displaced_cells)) == [False] * 2 + [True] * 5 + [False] * 3
    assert problems(bytecode) == []
    items[5] = Instr("NOP")  # now the variable is put back, and the cell lost
    assert "item 7 (LOAD_DEREF 'c'): a comprehension's variable stands where" in problems(bytecode)[0]


def test_cells_that_may_be_empty():
    def late(n):
        if n:
            x = 1
        try:
            return (lambda: x), x
        finally:
            x = 2
            x += 1

    bytecode = decode(late.__code__)
    found = cells_bound(bytecode, stack_states(bytecode)).found
    loads = [i for i, item in enumerate(bytecode.instructions) if isinstance(item, Instr) and item.op == "LOAD_DEREF"]
    assert found == {loads[0]} < set(loads)
