"""Generated code runs on every version with the expected effects."""

from types import FunctionType

import pytest

from framesmith_bytecode import ITERATOR_SLOTS, NULL_FIRST, Bytecode, Codegen, Label, Position, decode, encode, verify


def build(codegen, name="generated", closure=None, namespace=None, **header):
    bytecode = codegen.bytecode(name)
    for key, value in header.items():
        setattr(bytecode, key, value)
    verify(bytecode)
    code = encode(bytecode)
    assert decode(code).name == name
    return FunctionType(code, {"__builtins__": __builtins__} if namespace is None else namespace, name, None, closure)


class Constant:
    """A value that reconstructs as a constant, counting how often."""

    def __init__(self, value):
        self.value = value
        self.times = 0

    def reconstruct(self, codegen):
        self.times += 1
        codegen.load_const(self.value)


def generator(*names, **options):
    return Codegen(list(names), **options)


def test_null_first_is_the_order_the_compiler_uses():
    code = decode((lambda callee: callee()).__code__)
    ops = [item.op for item in code.instructions if item.op in ("PUSH_NULL", "LOAD_FAST")]
    assert ops == (["PUSH_NULL", "LOAD_FAST"] if NULL_FIRST else ["LOAD_FAST", "PUSH_NULL"])


def test_calls_positional_keyword_and_unpacked():
    def target(*args, **kwargs):
        return args, kwargs

    codegen = generator("x")
    codegen.push_callable(lambda: codegen.load_const(target))
    codegen.load("x")
    codegen.load_const(2)
    codegen.load_const(3)
    codegen.call(3, ["k"])
    codegen.push_callable(lambda: codegen.load_const(target))
    codegen.load_const((4, 5))
    codegen.load_const("m")
    codegen.load_const(6)
    codegen.build("map", 1)
    codegen.call_ex(True)
    codegen.push_callable(lambda: codegen.load_const(target))
    codegen.load_const((7,))
    codegen.call_ex(False)
    codegen.build("tuple", 3)
    codegen.return_value()
    assert build(codegen)(1) == (((1, 2), {"k": 3}), ((4, 5), {"m": 6}), ((7,), {}))


def test_callable_already_on_the_stack():
    codegen = generator("f", "x")
    codegen.load("f")
    codegen.callable_on_stack()
    codegen.load("x")
    codegen.call(1)
    codegen.return_value()
    assert build(codegen)(str, 5) == "5"


def test_methods_attributes_and_items():
    codegen = generator("items")
    codegen.load("items")
    codegen.load_method("append")
    codegen.load_const(1)
    codegen.call_method(1)
    codegen.pop()
    codegen.load_const("first")
    codegen.load("items")
    codegen.store_item(0)
    codegen.load("items")
    codegen.delete_item(1)
    codegen.load("items")
    codegen.load_item(0)
    codegen.load("items")
    codegen.load_attr("__class__")
    codegen.load_attr("__name__")
    codegen.build("tuple", 2)
    codegen.return_value()
    data = ["zeroth"]
    assert build(codegen)(data) == ("first", "list")
    assert data == ["first"]


def test_store_and_delete_attributes():
    class Thing:
        old = None

    thing = Thing()
    thing.gone = 1
    codegen = generator("thing")
    codegen.load_const(3)
    codegen.load("thing")
    codegen.store_attr("new")
    codegen.load("thing")
    codegen.delete_attr("gone")
    codegen.load_const(None)
    codegen.return_value()
    build(codegen)(thing)
    assert vars(thing) == {"new": 3}


def test_globals():
    codegen = generator()
    codegen.load_const(3)
    codegen.store_global("somewhere")
    codegen.load_global("somewhere")
    codegen.delete_global("somewhere")
    codegen.return_value()
    namespace = {}
    assert build(codegen, namespace=namespace)() == 3
    assert "somewhere" not in namespace


def test_functions_with_closures():
    def outer():
        cell = 10

        def inner(x, y):
            return cell + x + y

        return inner

    inner_code = outer().__code__
    codegen = generator("cell", cellvars=["cell"])
    codegen.make_function(inner_code, ["cell"])
    codegen.load_const(5)
    codegen.store("cell")
    codegen.callable_on_stack()
    codegen.load_const(1)
    codegen.load_const(100)
    codegen.call(2)
    codegen.return_value()
    assert build(codegen)(10) == 5 + 1 + 100
    with pytest.raises(ValueError, match="free variables"):
        codegen.make_function(inner_code, [])
    with pytest.raises(ValueError, match="neither a cell nor a free variable"):
        codegen.make_function(inner_code, ["nowhere"])


def test_free_variables():
    value = 3

    def closure():
        return value

    codegen = Codegen(freevars=["value"])
    codegen.load("value")
    codegen.load_const(4)
    codegen.store("value")
    codegen.return_value()
    assert build(codegen, closure=closure.__closure__)() == 3
    assert value == 4


def test_values_are_kept_by_identity():
    value, twin = Constant([1]), Constant([1])
    codegen = generator()
    names = [codegen.keep(each) for each in (value, twin, value)]
    assert names[0] == names[2] != names[1]
    for each in (value, twin, value):
        codegen(each)
    codegen.build("tuple", 3)
    codegen.return_value()
    first, second, third = build(codegen)()
    assert first is third
    assert second is not first
    assert (value.times, twin.times) == (1, 1)


def test_what_is_forgotten_is_made_again():
    value, other = Constant(1), Constant(2)
    codegen = generator("x", "y", "c", cellvars=["c"])
    kept = codegen.keep(other)
    codegen.keep(value)
    codegen.forget_all(keep=[kept, "y"])
    codegen.restore_stack([value, other])
    codegen.load("y")
    codegen.load("c")
    codegen.push_callable(lambda: codegen.load_global("locals"))
    codegen.call(0)
    codegen.build("tuple", 5)
    codegen.return_value()
    assert build(codegen)(7, 8, 9) == (1, 2, 8, 9, {kept: 2, "y": 8, "c": 9})
    assert (value.times, other.times) == (2, 1)


def test_the_stack_is_spilled_and_restored():
    codegen = generator("f")
    codegen.push_callable(lambda: codegen.load("f"))
    codegen.load_const(1)
    names = [codegen.new_temp("slot") for _ in range(3)]
    codegen.spill_stack(names)
    codegen.push_callable(lambda: codegen.load(names[NULL_FIRST]))
    codegen.load(names[2])
    codegen.call(1)
    codegen.return_value()
    assert build(codegen)(str) == "1"


def test_restore_stack_with_null():
    values = [Constant(1), Constant("two")]
    codegen = generator()
    codegen.push_callable(lambda: codegen.load_global("max"))
    codegen.restore_stack([Constant(1), Constant(9)])
    codegen.call(2)
    codegen.restore_stack(values)
    codegen.build("tuple", 3)
    codegen.return_value()
    assert build(codegen)() == (9, 1, "two")
    codegen = generator()
    codegen.restore_stack([None])
    assert codegen.instructions[-1].op == "PUSH_NULL"


def test_a_call_of_values_and_constants():
    codegen = generator()
    value = Constant("1011")
    codegen.push_call(int, [value], [2])
    codegen.push_call(dict)
    codegen.build("tuple", 2)
    codegen.return_value()
    assert build(codegen)() == (11, {})


class Manager:
    def __init__(self, swallow):
        self.swallow, self.log = swallow, []

    def __enter__(self):
        self.log.append("enter")
        return 5

    def __exit__(self, kind, value, trace):
        self.log.append(kind)
        return self.swallow


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("target", [None, "v"])
def test_with_block(swallow, argument, target):
    codegen = generator("manager", "x")
    codegen.load("manager")

    def body():
        codegen.load_const(1)
        codegen.load("x")
        codegen.emit("BINARY_OP", "/")
        codegen.pop()

    codegen.with_block(body, target)
    codegen.load_const("after")
    codegen.return_value()
    manager = Manager(swallow)
    function = build(codegen)
    if argument or swallow:
        assert function(manager, argument) == "after"
    else:
        with pytest.raises(ZeroDivisionError):
            function(manager, argument)
    assert manager.log == ["enter", None if argument else ZeroDivisionError]


def test_branches_and_labels():
    codegen = generator("x")
    big = Label()
    codegen.load("x")
    codegen.load_const(3)
    codegen.emit("COMPARE_OP", ">")
    codegen.branch(big, on="true")
    codegen.load_const("small")
    codegen.return_value()
    codegen.mark(big)
    codegen.load_const("big")
    codegen.return_value()
    function = build(codegen)
    assert [function(x) for x in (1, 5)] == ["small", "big"]


def test_truth_of_any_value_is_tested():
    codegen = generator("x")
    yes = Label()
    codegen.load("x")
    codegen.branch(yes, on="true")
    codegen.load("x")
    codegen.emit("UNARY_NOT")
    codegen.return_value()
    codegen.mark(yes)
    codegen.load("x")
    codegen.emit("TO_BOOL")
    codegen.return_value()
    function = build(codegen)
    assert [function(x) for x in ([], [1], "", "a", 0, 3)] == [True] * 6


def test_backward_conditional_jump():
    codegen = generator("n")
    again = codegen.mark(Label())
    codegen.load("n")
    codegen.load_const(1)
    codegen.emit("BINARY_OP", "-")
    codegen.dup()
    codegen.store("n")
    codegen.branch(again, on="true")
    codegen.load("n")
    codegen.return_value()
    assert build(codegen)(5) == 0


def test_loop_with_backward_exit_and_shared_exit():
    """FOR_ITER may leave backward, and two loops may leave to one label that control also falls into."""
    codegen = generator("rows")
    out, outer, inner = Label(), Label(), Label()
    codegen.load_const(0)
    codegen.store("total")
    codegen.load("rows")
    codegen.emit("GET_ITER")
    codegen.mark(outer)
    codegen.emit("FOR_ITER", out)
    codegen.emit("GET_ITER")
    codegen.mark(inner)
    codegen.emit("FOR_ITER", outer)
    codegen.load("total")
    codegen.emit("BINARY_OP", "+")
    codegen.store("total")
    codegen.jump(inner)
    codegen.mark(out)
    codegen.load("total")
    codegen.return_value()
    assert build(codegen)([[1, 2], [], [3]]) == 6


def test_loop_exit_that_is_fallen_into():
    codegen = generator("items")
    out = Label()
    codegen.load("items")
    codegen.emit("GET_ITER")
    codegen.emit("FOR_ITER", out)
    codegen.store("last")
    codegen.pop(ITERATOR_SLOTS)
    codegen.mark(out)
    codegen.load_const("done")
    codegen.return_value()
    function = build(codegen)
    assert [function([]), function([1, 2])] == ["done", "done"]


def test_unbound_local_is_an_error_not_a_crash():
    codegen = generator("flag", varnames=["x"])
    skip = Label()
    codegen.load("flag")
    codegen.branch(skip, on="false")
    codegen.load_const(1)
    codegen.store("x")
    codegen.mark(skip)
    codegen.load("x")
    codegen.return_value()
    function = build(codegen)
    assert function(True) == 1
    with pytest.raises(UnboundLocalError, match="'x'"):
        function(False)


def test_strings_slices_and_conversions():
    codegen = generator("x")
    codegen.load("x")
    codegen.emit("CONVERT_VALUE", "repr")
    codegen.emit("FORMAT_SIMPLE")
    codegen.load("x")
    codegen.load_const(">5")
    codegen.emit("FORMAT_WITH_SPEC")
    codegen.build("string", 2)
    codegen.load_const([1, 2, 3])
    codegen.load_const(1)
    codegen.load_const(None)
    codegen.emit("BINARY_SLICE")
    codegen.build("tuple", 2)
    codegen.return_value()
    assert build(codegen)("a") == ("'a'    a", [2, 3])


def test_raise():
    codegen = generator()
    codegen.push_callable(lambda: codegen.load_global("ValueError"))
    codegen.load_const("no")
    codegen.call(1)
    codegen.raise_()
    with pytest.raises(ValueError, match="no"):
        build(codegen)()


def test_like_keeps_the_signature():
    def template(a, /, b, *args, c=3, **kwargs):
        "doc"

    codegen = Codegen.like(decode(template.__code__))
    for name in ("a", "b", "c", "args", "kwargs"):
        codegen.load(name)
    codegen.build("tuple", 5)
    codegen.return_value()
    function = build(codegen, "template")
    function.__kwdefaults__ = {"c": 3}
    assert function(1, 2, 4, d=5) == (1, 2, 3, (4,), {"d": 5})
    assert function.__doc__ == "doc"


def test_positions_reach_tracebacks():
    codegen = generator()
    codegen.position = Position(42, 42, 0, 5)
    codegen.load_const(1)
    codegen.load_const(0)
    codegen.emit("BINARY_OP", "/")
    codegen.return_value()
    with pytest.raises(ZeroDivisionError) as caught:
        build(codegen, firstlineno=40)()
    assert caught.traceback[-1]._rawentry.tb_lineno == 42


def test_unknown_variables_are_refused():
    codegen = generator("x")
    with pytest.raises(ValueError, match=r"'y' is not a variable of this function; locals are \['x'\]"):
        codegen.load("y")
    with pytest.raises(ValueError, match="'y' is not a variable"):
        codegen.delete("y")


def test_empty_bytecode_has_a_header():
    assert Bytecode("f").argument_names == []


def test_a_generated_function_called_by_another():
    inner = Codegen(["y"], freevars=["total"])
    inner.load("total")
    inner.load("y")
    inner.emit("BINARY_OP", "+")
    inner.dup()
    inner.store("total")
    inner.return_value()
    codegen = generator("total", cellvars=["total"])
    codegen.push_callable(lambda: codegen.make_function(encode(inner.bytecode("inner")), ["total"]))
    codegen.load_const(3)
    codegen.call(1)
    codegen.load("total")
    codegen.build("tuple", 2)
    codegen.return_value()
    assert build(codegen)(4) == (7, 7)


def test_a_with_block_in_the_middle_of_an_expression():
    codegen = generator("manager", cellvars=["target"])
    codegen.load_const(1)
    codegen.load("manager")
    codegen.with_block(lambda: (codegen.load("target"), codegen.pop()), "target")
    codegen.load("target")
    codegen.build("tuple", 2)
    codegen.return_value()
    manager = Manager(False)
    assert build(codegen)(manager) == (1, 5)
    assert manager.log == ["enter", None]
