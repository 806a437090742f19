"""Names changed between calls: globals, other modules, builtins, and the dictionaries behind them."""

import builtins
import sys
import types
from types import MappingProxyType

import torch

from integration_tests.programs.families import Family, World, deleting, dropping, setting, storing

family = Family()

THIS = sys.modules[__name__]
SCALE = 2.0
TABLE = {"scale": 2.0, "shift": 1.0}
VIEW = MappingProxyType(TABLE)
WEIGHT = torch.ones(3)
ROWS = [1.0, [2.0, 3.0]]


def set_scale(value):
    global SCALE
    SCALE = value


def bump(by=1.0):
    global SCALE
    SCALE += by


def double(x):
    return x * 2


def triple(x):
    return x * 3


OTHER = """
SCALE = 2.0
def set_scale(value):
    global SCALE
    SCALE = value
def get_scale():
    return SCALE
def apply(x):
    return x * SCALE
"""


def module(name: str, source: str = OTHER) -> types.ModuleType:
    """A module made now, known to `import`."""
    made = types.ModuleType(name)
    exec(source, vars(made))
    sys.modules[name] = made
    return made


@family.holder("two", "five", "gone")
def own_global() -> World:
    def f(x):
        return x * SCALE

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0), deleting(THIS, "SCALE")])


@family.holder("number", "tensor", "text")
def own_global_of_another_type() -> World:
    def f(x):
        return [x] * 2 if isinstance(SCALE, str) else x * SCALE

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=torch.ones(3)), setting(THIS, SCALE="s")])


@family.holder("two", "five", "integer")
def own_global_set_by_a_call() -> World:
    def f(x, by):
        set_scale(SCALE + by)
        y = x * SCALE
        bump()
        return y, SCALE

    states = [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0), setting(THIS, SCALE=5)]
    return World(f, states, lambda: (torch.ones(2), 0.5))


@family.holder("two", "five", "gone")
def own_global_through_globals() -> World:
    def f(x):
        return x * globals()["SCALE"], "SCALE" in globals(), globals().get("SCALE", 1)

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0), deleting(THIS, "SCALE")])


@family.holder("two", "five", "gone")
def own_global_written_through_globals() -> World:
    def f(x):
        before = globals().get("SCALE", 0.0)
        globals()["SCALE"] = before + 1
        bump()
        y = x * SCALE
        globals().update(SCALE=SCALE * 2)
        return y, SCALE, THIS.SCALE, vars(THIS)["SCALE"]

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0), deleting(THIS, "SCALE")])


@family.holder("two", "five", "gone")
def own_global_through_its_module() -> World:
    def f(x):
        return x * sys.modules[__name__].SCALE, THIS.SCALE, getattr(THIS, "SCALE", None)

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0), deleting(THIS, "SCALE")])


@family.holder("two", "five")
def own_global_written_through_its_module() -> World:
    def f(x):
        THIS.SCALE = SCALE + 1
        y = x * SCALE
        bump()
        setattr(sys.modules[__name__], "SCALE", THIS.SCALE * 2)
        return y, SCALE

    return World(f, [setting(THIS, SCALE=2.0), setting(THIS, SCALE=5.0)])


@family.holder("kept", "deleted_and_set")
def own_global_deleted_inside() -> World:
    def f(x):
        global SCALE
        held = SCALE
        del SCALE
        try:
            y = x * SCALE
        except NameError as error:
            y = str(error)
        SCALE = held
        return y, x * SCALE, list(globals()).index("SCALE") > list(globals()).index("TABLE")

    def again():
        del THIS.SCALE
        THIS.SCALE = 3.0

    return World(f, [setting(THIS, SCALE=2.0), again])


@family.holder("made", "replaced", "changed_in_place")
def own_global_tensor() -> World:
    def f(x):
        return x * WEIGHT, WEIGHT

    return World(
        f, [setting(THIS, WEIGHT=torch.ones(3)), setting(THIS, WEIGHT=torch.arange(3.0)), lambda: WEIGHT.mul_(3)]
    )


@family.holder("vector", "matrix", "whole_numbers", "view")
def own_global_tensor_of_another_kind() -> World:
    def f(x):
        return x * WEIGHT, WEIGHT.shape, WEIGHT.dtype, WEIGHT.stride()

    kinds = torch.ones(3), torch.ones(2, 3), torch.arange(3), torch.arange(6.0)[::2]
    return World(f, [setting(THIS, WEIGHT=kind) for kind in kinds])


@family.holder("double", "triple", "lambda_")
def own_function_replaced() -> World:
    def f(x):
        return double(x) + 1

    return World(f, [setting(THIS, double=double), setting(THIS, double=triple), setting(THIS, double=lambda x: x - 1)])


@family.holder("builtin", "shadowed", "shadowed_again")
def builtin_shadowed_by_a_global() -> World:
    def f(x):
        return x * abs(-3), max(1, 2)

    return World(f, [deleting(THIS, "abs"), setting(THIS, abs=lambda v: 100), setting(THIS, abs=lambda v: 7)])


@family.holder("real", "replaced", "replaced_by_a_class")
def builtin_replaced() -> World:
    real = builtins.oct

    def f(x):
        return x * len(oct(8)), oct(9)

    states = [setting(builtins, oct=new) for new in (real, lambda v: "replaced", bytes)]
    return World(f, states, undo=setting(builtins, oct=real))


@family.holder("real", "replaced", "gone")
def builtin_through_its_module() -> World:
    real = builtins.oct

    def f(x):
        return x * len(builtins.oct(8)), getattr(builtins, "oct", None) is oct

    states = [setting(builtins, oct=real), setting(builtins, oct=lambda v: "replaced"), deleting(builtins, "oct")]
    return World(f, states, undo=setting(builtins, oct=real))


@family.holder("absent", "two", "five")
def builtin_added() -> World:
    def f(x):
        return x * ADDED_TO_BUILTINS  # noqa: F821

    drop = deleting(builtins, "ADDED_TO_BUILTINS")
    states = [drop, setting(builtins, ADDED_TO_BUILTINS=2.0), setting(builtins, ADDED_TO_BUILTINS=5.0)]
    return World(f, states, undo=drop)


@family.holder("two", "five", "gone")
def other_module_by_attribute() -> World:
    other = module("programs_other")

    def f(x):
        return x * other.SCALE, other.get_scale(), other.apply(x)

    return World(f, [setting(other, SCALE=2.0), setting(other, SCALE=5.0), deleting(other, "SCALE")])


@family.holder("two", "five")
def other_module_set_by_its_function() -> World:
    other = module("programs_other")

    def f(x, by):
        other.set_scale(other.SCALE + by)
        y = other.apply(x) + other.SCALE
        other.SCALE = other.get_scale() * 2
        return y, vars(other)["SCALE"], other.get_scale()

    return World(f, [setting(other, SCALE=2.0), setting(other, SCALE=5.0)], lambda: (torch.ones(2), 0.5))


@family.holder("two", "five", "gone")
def other_module_imported_inside() -> World:
    other = module("programs_other")

    def f(x):
        from programs_other import SCALE as scale

        return x * scale

    return World(f, [setting(other, SCALE=2.0), setting(other, SCALE=5.0), deleting(other, "SCALE")])


@family.holder("first", "second", "absent")
def module_behind_import_replaced() -> World:
    first, second = module("programs_other"), module("programs_other", OTHER.replace("2.0", "7.0"))

    def f(x):
        import programs_other

        return programs_other.apply(x), programs_other.SCALE

    table = sys.modules
    return World(
        f,
        [
            storing(table, programs_other=first),
            storing(table, programs_other=second),
            dropping(table, "programs_other"),
        ],
    )


@family.holder("first", "second", "absent")
def modules_table_read() -> World:
    first, second = module("programs_other"), module("programs_other", OTHER.replace("2.0", "7.0"))

    def f(x):
        found = sys.modules.get("programs_other")
        return x if found is None else found.apply(x)

    table = sys.modules
    return World(
        f,
        [
            storing(table, programs_other=first),
            storing(table, programs_other=second),
            dropping(table, "programs_other"),
        ],
    )


@family.holder("first", "second", "value_changed")
def submodule_replaced() -> World:
    package = module("programs_package", "")
    first, second = module("programs_package.part"), module("programs_package.part")
    second.SCALE = 7.0

    def f(x):
        return package.part.apply(x), package.part.SCALE

    def changed():
        package.part = first
        first.SCALE += 1

    return World(f, [setting(package, part=first), setting(package, part=second), changed])


@family.holder("two", "five", "attribute", "neither")
def module_getattr() -> World:
    other = module("programs_other", "VALUES = {'SCALE': 2.0}")

    def hook(value):
        def __getattr__(name):
            if name == "SCALE":
                return value
            raise AttributeError(name)

        def put():
            deleting(other, "SCALE")()
            other.__getattr__ = __getattr__

        return put

    def f(x):
        return x * other.SCALE

    return World(f, [hook(2.0), hook(5.0), setting(other, SCALE=3.0), deleting(other, "SCALE", "__getattr__")])


@family.holder("two", "five", "gone")
def module_dictionary_held() -> World:
    other = module("programs_other")
    fields = vars(other)

    def f(x, named):
        other.SCALE = fields.get("SCALE", 1.0) + 1
        y = x * named["SCALE"]
        fields["SCALE"] = 10.0
        return y, other.get_scale(), named is fields

    states = [setting(other, SCALE=2.0), setting(other, SCALE=5.0), deleting(other, "SCALE")]
    return World(f, states, lambda: (torch.ones(2), fields))


@family.holder("two", "five", "gone")
def mapping_proxy() -> World:
    def f(x):
        return x * VIEW["scale"], len(VIEW), list(VIEW), VIEW.get("shift")

    return World(f, [storing(TABLE, scale=2.0), storing(TABLE, scale=5.0), dropping(TABLE, "scale")])


@family.holder("first", "second", "copy")
def mapping_proxy_replaced() -> World:
    def f(x):
        return x * VIEW["scale"], "new" in VIEW, dict(VIEW)

    views = [MappingProxyType(table) for table in (TABLE, {"scale": 7.0, "new": 1}, dict(TABLE))]
    return World(f, [setting(THIS, VIEW=view) for view in views])


@family.holder("two", "five", "grown")
def mapping_proxy_argument() -> World:
    def f(x, view):
        total = sum(view.values())
        TABLE["shift"] = total
        return x * view["scale"] + view["shift"], total

    states = [storing(TABLE, scale=2.0, shift=0.0), storing(TABLE, scale=5.0, shift=0.0), storing(TABLE, more=1.0)]
    return World(f, states, lambda: (torch.ones(2), VIEW), watch=[TABLE])


@family.holder("two", "five", "gone", "reordered")
def own_dictionary() -> World:
    def f(x):
        return [x * value for value in TABLE.values()], list(TABLE), TABLE["scale"]

    def reordered():
        TABLE["shift"] = TABLE.pop("shift")

    return World(f, [storing(TABLE, scale=2.0), storing(TABLE, scale=5.0), dropping(TABLE, "scale"), reordered])


@family.holder("made", "inner_changed", "longer", "replaced")
def own_nested_list() -> World:
    def f(x):
        return x * ROWS[1][0], len(ROWS), ROWS[-1]

    def made():
        ROWS[:] = [1.0, [2.0, 3.0]]

    def inner():
        made()
        ROWS[1][0] = 9.0

    def longer():
        made()
        ROWS.append([4.0])

    def replaced():
        made()
        ROWS[1] = (5.0, 6.0)

    return World(f, [made, inner, longer, replaced])


@family.holder("single", "double_", "half")
def default_dtype() -> World:
    def f(x):
        return x + torch.ones(3), torch.get_default_dtype(), torch.tensor(1.5), torch.zeros(2).dtype

    kinds = torch.float32, torch.float64, torch.float16
    states = [lambda kind=kind: torch.set_default_dtype(kind) for kind in kinds]
    return World(f, states, undo=lambda: torch.set_default_dtype(torch.float32))


@family.holder("enabled", "disabled")
def grad_mode_set_for_good() -> World:
    def f(x):
        return x * 2, torch.is_grad_enabled()

    states = [lambda: torch.set_grad_enabled(True), lambda: torch.set_grad_enabled(False)]
    arguments = lambda: (torch.ones(2, requires_grad=True),)  # noqa: E731
    return World(f, states, arguments, undo=lambda: torch.set_grad_enabled(True))


@family.holder("off", "on")
def deterministic_algorithms() -> World:
    def f(x):
        return torch.empty(3).fill_(1) * x, torch.are_deterministic_algorithms_enabled()

    def put(on):
        torch._C._set_deterministic_algorithms(on)

    return World(f, [lambda: put(False), lambda: put(True)], undo=lambda: put(False))


@family.holder("torch_function", "own_function", "method_of_torch")
def function_of_torch_behind_a_name() -> World:
    other = module("programs_other", "import torch\nact = torch.relu")

    def f(x):
        return other.act(x - 2)

    return World(f, [setting(other, act=torch.relu), setting(other, act=triple), setting(other, act=torch.Tensor.neg)])
