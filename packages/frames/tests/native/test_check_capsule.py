"""Native checkers: the capsule of check_abi.h, here made with ctypes."""

import ctypes
import sys

import pytest
from checkers import CHECK, NAME, NativeExtracting, Struct, new_capsule

import framesmith_frames as frames


class Checker:
    """Compares the arguments with a tuple; returns `broken` if that is set."""

    def __init__(self, expected, version=1, name=NAME, broken=None):
        def check(this, args, count, function, extracted):
            assert this is self
            self.functions.append(function)
            self.extracted.append(extracted)
            if broken is not None:
                return broken
            return tuple(args[i] for i in range(count)) == self.expected

        self.expected = expected
        self.functions = []
        self.extracted = []
        self._name = name
        self._struct = Struct(version, CHECK(check))
        self.__framesmith_check__ = new_capsule(ctypes.addressof(self._struct), name, None)


def original(a, *rest, key=1, **more):
    return None


def replacement(a, *rest, key=1, **more):
    return a, rest, key, more


def answering(checker, complete=False):
    def callback(frame):
        if frame.code is original.__code__:
            return frames.Entry(checker, replacement.__code__, complete=complete)
        return frames.SKIP("other")

    return callback


@pytest.mark.parametrize("complete", [False, True])
def test_a_native_checker_decides(complete):
    checker = Checker((1, 5, (2,), {"x": 3}))
    compiled = frames.CompiledFunction(original, answering(checker, complete))
    with frames.activated(answering(checker, complete)):
        assert original(1, 2, key=5, x=3) == original(1, 2, key=5, x=3) == (1, (2,), 5, {"x": 3})
        assert original(1, 2) is None
    assert compiled(1, 2, key=5, x=3) == (1, (2,), 5, {"x": 3})
    assert compiled(2) is None
    assert set(checker.functions) == {original}
    assert set(checker.extracted) == {None}


class Forgetful(NativeExtracting):
    """Returns 1 without a tuple, or 0 with one."""

    def __init__(self, answer):
        left = ("left", "behind")

        def check(this, args, count, function, extracted):
            if not answer:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
                ctypes.c_void_p.from_address(extracted).value = id(left)
            return answer

        self.left = left
        self._struct = Struct(1, CHECK(check))
        self.__framesmith_check__ = new_capsule(ctypes.addressof(self._struct), NAME, None)


def with_local(a, *rest, key=1, **more):
    inputs = None
    return inputs


def test_one_without_inputs_is_reported():
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(str(error)))
    entry = frames.Entry(Forgetful(1), with_local.__code__, inputs=True)
    with frames.activated(lambda frame: entry if frame.code is original.__code__ else frames.SKIP("")):
        assert original(1) is None
    assert seen == ["a checker of an entry with inputs must return a tuple of them, not nothing"]


def test_a_tuple_of_a_miss_is_dropped():
    checker = Forgetful(0)
    entry = frames.Entry(checker, with_local.__code__, inputs=True)
    with frames.activated(lambda frame: entry if frame.code is original.__code__ else frames.SKIP("")):
        original(1)
        before = sys.getrefcount(checker.left)
        for _ in range(10):
            original(1)
        after = sys.getrefcount(checker.left)
    assert after == before


def test_minus_one_without_an_exception_is_reported():
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(repr(error)))
    with frames.activated(answering(Checker((), broken=-1))):
        assert original(1) is None
    assert seen == ["SystemError('a native checker returned -1 without an exception')"]


@pytest.mark.parametrize("wrong", [{"version": 2}, {"name": b"framesmith.check.v2"}])
def test_another_version_or_name_is_refused(wrong):
    with pytest.raises(ValueError, match=r'capsule named "framesmith.check.v1" with version 1'):
        frames.Entry(Checker((), **wrong), replacement.__code__)


def test_the_capsule_outlives_the_attribute():
    checker = Checker((1, 1, (), {}))
    entry = frames.Entry(checker, replacement.__code__)
    del checker.__framesmith_check__

    with frames.activated(lambda frame: entry if frame.code is original.__code__ else frames.SKIP("")):
        assert original(1) == (1, (), 1, {})
