"""Fields of exceptions that C code sets, such as `name` of a NameError: read in eager mode, never assumed absent."""

import pytest
import torch
from driver import compiled, outcome, same

X = torch.arange(3.0)


class Plain:
    pass


class Slotted(ValueError):
    __slots__ = ("amount", "never")


def unknown_name(x):
    try:
        return missing
    except NameError as error:
        return hasattr(error, "name"), getattr(error, "name", "nothing"), x + 1


def unbound(x):
    if x is None:
        y = 1
    try:
        return y
    except UnboundLocalError as error:
        return hasattr(error, "name"), x + 1


def unknown_attribute(x):
    plain = Plain()
    try:
        return plain.nothing
    except AttributeError as error:
        return getattr(error, "name", "nothing"), getattr(error, "obj", None) is plain, x + 1


def made_and_not_raised(x):
    return NameError("a", name="b").name, hasattr(OSError(2, "no"), "errno"), x + 1


def of_the_system(x):
    try:
        raise OSError(2, "no", "file")
    except OSError as error:
        return error.errno, error.strerror, error.filename, x + 1


def of_a_number_of_its_own(x):
    try:
        raise OSError(2, "no", "file")
    except FileNotFoundError as error:
        return x + len(error.args)


class Own(OSError):
    def __init__(self, number, *, why="no"):
        super().__init__(number, why)
        self.why = why


def of_a_class_of_its_own(x):
    try:
        raise Own(3, why="so")
    except OSError as error:
        return x + error.errno, error.why, error.args


def of_an_import(x):
    try:
        raise ImportError("a", name="n", path="p")
    except ImportError as error:
        return error.name, error.path, error.msg, x + 1


def of_a_decoder(x):
    try:
        raise UnicodeDecodeError("u", b"a", 0, 1, "r")
    except UnicodeDecodeError as error:
        return error.start, error.reason, x + 1


def slots_of_its_own(x):
    error = Slotted("a")
    error.amount = 3
    return x * error.amount, hasattr(error, "never")


class Silent(StopIteration):
    def __init__(self, value):
        self.own = value


def fields_and_args(x):
    leaving, stopping, silent = SystemExit(1, 2), StopIteration(3), Silent(4)
    stopping.args = (5,)
    return leaving.code, stopping.value, stopping.args, silent.value, silent.args, SystemExit().code, x + 1


class Loud(StopIteration):
    def __init__(self, value):
        super().__init__(value)
        self.args = ("other", value)


class Counted(ValueError):
    made = 0

    def __new__(cls, *args):
        Counted.made += 1
        return super().__new__(cls, *args)


def given_back(x):
    stopping = StopIteration(3)
    stopping.args = (5,)
    return [(error, error.value) for error in (Silent(4), Loud(x), stopping, StopIteration())]


def result_of_a_generator(x):
    def numbers():
        yield 1
        return x

    made = numbers()
    next(made)
    try:
        next(made)
    except StopIteration as error:
        return error.value + 1


BREAK = [unknown_name, unbound, unknown_attribute]
PROGRAMS = [
    fields_and_args,
    given_back,
    *BREAK,
    of_the_system,
    of_a_number_of_its_own,
    of_a_class_of_its_own,
    made_and_not_raised,
    of_an_import,
    of_a_decoder,
    slots_of_its_own,
    result_of_a_generator,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_in_eager_mode(fn):
    expected, converted = outcome(fn, (X,)), compiled(fn)
    for _ in range(3):
        assert same(outcome(converted, (X,)), expected)
    kinds = {event.broken.kind.id for event in converted.of_kind("break")}
    assert ("exception-field" in kinds) or fn not in BREAK
    assert not kinds or fn not in (slots_of_its_own, result_of_a_generator)


def test_made_once():
    def one(x):
        return Counted(x)

    converted = compiled(one)
    for count in range(1, 4):
        assert converted(X).args[0] is X
        assert Counted.made == count
    Counted.made = 0


def test_fields_of_what_is_given_back():
    [(silent, _), (loud, _), (stopping, _), (empty, _)] = compiled(given_back)(X)
    assert (silent.value, loud.value is X, stopping.value, empty.value) == (None, True, 3, None)
    assert (silent.args, loud.args[0], stopping.args, empty.args) == ((4,), "other", (5,), ())
