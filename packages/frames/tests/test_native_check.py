"""Native checkers: the capsule of check_abi.h, here made with ctypes."""

import ctypes

import pytest

import framesmith_frames as frames

CHECK = ctypes.PYFUNCTYPE(
    ctypes.c_int,
    ctypes.py_object,
    ctypes.POINTER(ctypes.py_object),
    ctypes.c_ssize_t,
    ctypes.py_object,
    ctypes.c_void_p,
)


class Struct(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("check", CHECK)]


NAME = b"framesmith.check.v1"
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Checker:
    """Compares the arguments with a tuple; answers `broken` if that is set."""

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


def test_minus_one_without_an_exception_is_reported():
    seen = []
    frames.set_error_handler(lambda error, frame: seen.append(repr(error)))
    with frames.activated(answering(Checker((), broken=-1))):
        assert original(1) is None
    assert seen == ["SystemError('a native checker answered -1 and set no exception')"]


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
