"""A library of interest, a callback with an interest filter for it, and functions to call."""

import types
from types import MappingProxyType

import framesmith_frames as frames

#: A package that callbacks are interested in.
library = types.ModuleType("library")
sub = types.ModuleType("library.sub")


class Thing:
    __module__ = "library.sub"

    def touch(self):
        return 1


class Derived(Thing):
    __module__ = "elsewhere"


class Holder:
    def __init__(self, held=None):
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def make():
    return Thing()


make.__module__ = "library"
library.make = make
library.sub = sub


class Asked:
    """A callback interested in `library`; records the names of the functions offered and gives each the same answer."""

    def __init__(self, answer=frames.RUN_ONCE):
        self.names = []
        self.answer = answer
        frames.set_interest_filter(self, ("library",))

    def __call__(self, frame):
        self.names.append(frame.code.co_name)
        return self.answer("noted")


def outermost(function, *args, **kwargs):
    return function(*args, **kwargs)


def asked_about(function, *args, times=1, **kwargs):
    """Names of the functions offered in these calls, but for the outermost, which always is."""
    return asked_in(Asked(), function, args, kwargs, times)


def asked_in(asked, function, args, kwargs=MappingProxyType({}), times=1):
    for _ in range(times):
        with frames.activated(asked):
            outermost(function, *args, **kwargs)
    return [name for name in asked.names if name != "outermost"]


def plain(a=None, b=None):
    return a


def variadic(*args, **kwargs):
    return len(args)


def nothing_given():
    return plain(1)
