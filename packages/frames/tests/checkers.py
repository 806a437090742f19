"""Checkers for tests: capsules of check_abi.h through ctypes, and checkers with inputs."""

import ctypes

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


class Extracting:
    """A checker without the capsule that returns the result of `find(args, function)`."""

    def __init__(self, find):
        self.find = find

    def extract(self, args, function):
        return self.find(args, function)


class NativeExtracting:
    """The same through the capsule; `find` must not raise, since ctypes cannot propagate exceptions."""

    def __init__(self, find):
        def check(this, args, count, function, extracted):
            found = find(tuple(args[i] for i in range(count)), function)
            if found is None:
                return 0
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
            ctypes.c_void_p.from_address(extracted).value = id(found)
            return 1

        self._struct = Struct(1, CHECK(check))
        self.__framesmith_check__ = new_capsule(ctypes.addressof(self._struct), NAME, None)
