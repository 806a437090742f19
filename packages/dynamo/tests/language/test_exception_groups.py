"""Programs with exception groups, `except*`, notes, and `except` without parentheses: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# two clauses, both entered [whole]
def fn(x):
    y = x + 1
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        y = y * len(group.exceptions)
    except* TypeError:
        y = y + 5
    return y

# a clause with a tuple of classes [whole]
def fn(x):
    found = []
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError(2), OSError(3)])
    except* (ValueError, OSError) as group:
        found.append([type(error).__name__ for error in group.exceptions])
    except* TypeError as group:
        found.append(group.exceptions[0].args)
    return x * len(found), found

# nested groups keep their shape [whole]
def fn(x):
    inner = ExceptionGroup("inner", [ValueError(1), KeyError(2)])
    found = []
    try:
        raise ExceptionGroup("outer", [inner, ValueError(3), KeyError(4)])
    except* ValueError as group:
        found.append((group.message, group.exceptions[0].message, len(group.exceptions)))
    except* KeyError as group:
        found.append((group.message, group.exceptions[0].message, len(group.exceptions)))
    return x + 1, found

# what no clause handles goes on [whole]
def fn(x):
    y = x + 1
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2), ExceptionGroup("in", [ValueError(3), OSError()])])
        except* ValueError as group:
            y = y * len(group.exceptions)
    except ExceptionGroup as rest:
        return y, rest.message, [type(error).__name__ for error in rest.exceptions]

# a plain exception is wrapped [whole]
def fn(x):
    y = x * 2
    try:
        [][y.shape[0]]
    except* IndexError as group:
        y = y - len(group.exceptions)
        named = type(group).__name__, str(group), group.message
    return y, named

# a plain exception of another class goes on bare [whole]
def fn(x):
    try:
        try:
            raise ValueError(1)
        except* KeyError:
            x = x + 100
    except ValueError as error:
        return x + 1, type(error).__name__, error.args

# a plain exception raised again is wrapped [whole]
def fn(x):
    try:
        try:
            raise ValueError(1)
        except* ValueError:
            raise
    except ExceptionGroup as group:
        return x + 1, str(group), group.exceptions[0].args

# a clause raises another exception [whole]
def fn(x):
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2), OSError(3)])
        except* ValueError:
            raise IndexError(5)
        except* KeyError:
            raise
    except ExceptionGroup as group:
        first, second = group.exceptions
        return x * 2, str(group), repr(first), str(second), [str(error) for error in second.exceptions]

# a clause raises its group by name [whole]
def fn(x):
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2), OSError(3)])
        except* ValueError as error:
            raise error
    except ExceptionGroup as group:
        return x + 1, str(group), [(type(error).__name__, str(error)) for error in group.exceptions]

# a function called by a clause raises it again [whole]
def again():
    raise

def fn(x):
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
        except* ValueError:
            again()
    except ExceptionGroup as group:
        return x + 1, str(group), [(type(error).__name__, str(error)) for error in group.exceptions]

# all clauses raise [whole]
def fn(x):
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
        except* ValueError as error:
            raise TypeError("a") from error
        except* KeyError:
            raise OSError("b") from None
    except ExceptionGroup as group:
        a, b = group.exceptions
        return x + 1, str(group), str(a.__cause__), a.__suppress_context__, b.__cause__, str(b.__context__)

# a clause catches no groups [whole]
def fn(x):
    try:
        try:
            raise ValueError(1)
        except* ExceptionGroup:
            raise
    except TypeError as error:
        return x + 1, str(error)

# a clause catches exceptions only [whole]
def fn(x):
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1)])
        except* (ValueError, 5):
            raise
    except TypeError as error:
        return x + 1, str(error)

# else and finally [whole]
def fn(x):
    out = []
    for i in range(4):
        try:
            if i == 1:
                raise ExceptionGroup("a", [ValueError(i)])
            if i == 2:
                raise KeyError(i)
        except* ValueError:
            out.append("value")
        except* KeyError:
            out.append("key")
        else:
            out.append("else")
        finally:
            x = x + 1
    return x, out

# clauses inside clauses [whole]
def fn(x):
    out = []
    try:
        raise ExceptionGroup("a", [ValueError(1), KeyError(2)])
    except* ValueError:
        try:
            raise ExceptionGroup("b", [TypeError(3), OSError(4)])
        except* TypeError as group:
            out.append((str(group), str(group.__context__)))
        except* OSError as group:
            out.append((str(group), str(group.__context__)))
    except* KeyError as group:
        out.append((str(group), group.__context__))
    return x * len(out), out

# split and subgroup [whole]
def fn(x):
    group = ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [KeyError(2), ValueError(4)])])
    group.add_note("noted")
    match, rest = group.split(ValueError)
    by_function = group.subgroup(lambda error: isinstance(error, KeyError))
    nothing = group.subgroup((OSError, TypeError))
    whole = group.split(OSError)
    return x + len(match.exceptions), str(match), str(rest), str(by_function), nothing, match.__notes__, len(whole)

# arguments that groups refuse [whole]
def fn(x):
    out = []
    for args in (("a", []), ("a", 5), (1, [ValueError()]), ("a", [1]), ("a",), ("a", [KeyboardInterrupt()])):
        try:
            out.append(str(ExceptionGroup(*args)))
        except (TypeError, ValueError) as error:
            out.append((type(error).__name__, str(error)))
    return x + 1, out

# matchers that split refuses [whole]
def fn(x):
    out = []
    for what in (int, 5, (int,)):
        try:
            out.append(ExceptionGroup("a", [ValueError(3)]).split(what))
        except TypeError as error:
            out.append(str(error))
    return x + 1, out

# groups of base exceptions [whole]
def fn(x):
    a = BaseExceptionGroup("a", [ValueError()])
    b = BaseExceptionGroup("b", [KeyboardInterrupt()])
    return x + 1, type(a).__name__, type(b).__name__, str(a), str(b), isinstance(b, Exception)

# a group is returned [whole]
def fn(x):
    return x + 1, ExceptionGroup("a", [ValueError(x * 2), ExceptionGroup("b", [KeyError(1)])])

# a group leaves the function [raises]
def fn(x):
    y = x + 1
    raise ExceptionGroup("a", [ValueError(int(len(y)))])

# a class of groups with state of its own [whole]
class Mine(ExceptionGroup):
    def __new__(cls, message, exceptions, code):
        self = super().__new__(cls, message, exceptions)
        self.code = code
        return self
    def derive(self, exceptions):
        return Mine(self.message, exceptions, self.code + 1)

def fn(x):
    try:
        raise Mine("mine", [ValueError(1), KeyError(2)], 7)
    except* ValueError as group:
        y = x + group.code
        kind = type(group).__name__
    except* KeyError as group:
        y = y * group.code
    return y, kind

# context and cause of parts [whole]
def fn(x):
    try:
        try:
            {}[1]
        except KeyError:
            raise ExceptionGroup("a", [ValueError(1), OSError(2)]) from TypeError("cause")
    except* ValueError as group:
        a = type(group.__context__).__name__, str(group.__cause__)
    except* OSError as group:
        b = type(group.__context__).__name__, str(group.__cause__), group.__suppress_context__
    return x + 1, a, b

# a clause with an operation of torch that fails [whole]
def fn(x):
    y = x + 1
    try:
        raise ExceptionGroup("a", [ValueError(y.shape[0])])
    except* ValueError as group:
        z = y.reshape(2, group.exceptions[0].args[0] // 2)
    return z

# a clause that prints [break-in-block, print]
def fn(x):
    y = x + 1
    try:
        raise ExceptionGroup("a", [ValueError(1)])
    except* ValueError as group:
        print(group)
        y = y * 2
    return y

# a group that exists [break-in-block, unknown-object]
kept = ExceptionGroup("kept", [ValueError(1), KeyError(2)])
def fn(x):
    y = x + 1
    try:
        raise kept
    except* ValueError as group:
        y = y * len(group.exceptions)
    except* KeyError:
        y = y + 1
    return y

# notes [whole]
def fn(x):
    y = x + 1
    try:
        raise ValueError("one")
    except ValueError as error:
        error.add_note("first")
        error.add_note("second")
        notes = error.__notes__
        try:
            error.add_note(3)
        except TypeError as refused:
            why = str(refused)
    return y * len(notes), notes, why

# several classes without parentheses [whole; 3.14]
def fn(x):
    y = x + 1
    out = []
    for i in range(3):
        try:
            {}[i] if i else [][i]
        except KeyError, IndexError:
            out.append(i)
    return y * len(out), out

# groups by classes without parentheses [whole; 3.14]
def fn(x):
    y = x + 1
    try:
        raise ExceptionGroup("a", [KeyError(1), OSError(2)])
    except* KeyError, OSError:
        y = y * 2
    return y
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
