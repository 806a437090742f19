"""An interpreter of the text of `format_python`, line by line, for comparison with the function.

The docstring of `format_python` defines the lines. Functions only: no generators, no class bodies.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from types import CellType, CodeType, FunctionType

from framesmith_bytecode import Bytecode, Instr, format_python

NULL = object()
IN_PLACE = [name for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__")]
HANDLER = re.compile(r"    except: (.*); goto (L\d+)")
NEXT = re.compile(r"(?:(.*) = )?next\((.*)\), or goto (L\d+)")
BRANCH = re.compile(r"if (.*): goto (L\d+)")
STORED = re.compile(r"^slot\('(\w+)'\) = (.*)")
REWRITES = [
    (re.compile(r"\$(\d+)"), r"slot_\1"),
    (re.compile(r"load_fast_and_clear\((?:slot\()?(\w+)\)?\)"), r"load_fast_and_clear('\1')"),
    (re.compile(r"make_cell\(slot\((\w+)\)\)"), r"make_cell('\1')"),
    (re.compile(r"cell\((\w+)\)"), r"slot('\1')"),
    (re.compile(r"^del (\w+)$"), r"delete('\1')"),  # where it fails, `exec` would raise another exception
    (re.compile(r"\bslot\((\w+)\)"), r"slot('\1')"),
]


class Variables(dict):
    """The variables and slots by name; a cell variable's slot holds its cell, and its name means the contents."""

    def __init__(self, bytecode: Bytecode, cells):
        super().__init__()
        self.known = {*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars}
        self.cells = cells

    def __missing__(self, name):
        if name in self.known:
            raise UnboundLocalError(name)
        raise KeyError(name)

    def __getitem__(self, name):
        if name in self.cells:
            try:
                return super().__getitem__(name).cell_contents
            except ValueError:
                raise UnboundLocalError(name) from None
        return super().__getitem__(name)

    def __setitem__(self, name, value):
        if value is NULL and name in self.known:
            self.pop(name, None)
        elif name in self.cells:
            super().__getitem__(name).cell_contents = value
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name):
        if name in self.cells:
            self[name]  # to raise if it is empty
            del super().__getitem__(name).cell_contents
        elif name not in self:
            raise UnboundLocalError(name)
        else:
            super().__delitem__(name)

    def slot(self, name):
        return super().__getitem__(name)

    def set_slot(self, name, value):
        self.pop(name, None) if value is NULL else super().__setitem__(name, value)

    def load_fast_and_clear(self, name):
        return self.pop(name, NULL)

    def make_cell(self, name):
        super().__setitem__(name, CellType(self.pop(name)) if name in self else CellType())


class Machine:
    """One call of a function as rendered."""

    def __init__(self, bytecode: Bytecode, globals_: dict, closure=()):
        self.constants = {}
        self.codes = {}
        for item in bytecode.instructions:
            if isinstance(item, Instr) and isinstance(item.arg, CodeType):
                text = f"<code {item.arg.co_qualname}, line {item.arg.co_firstlineno}>"
                name = self.codes.setdefault(text, f"code_{len(self.codes)}")
                if self.constants.setdefault(name, item.arg) != item.arg:
                    raise Ambiguous(text)
        self.lines, self.labels = self.parse(format_python(bytecode))
        self.bytecode = bytecode
        cells = {*bytecode.cellvars, *bytecode.freevars}
        self.variables = Variables(bytecode, cells)
        for name, cell in zip(bytecode.freevars, closure, strict=True):
            self.variables.set_slot(name, cell)
        self.handled = None
        self.globals = {**{name: getattr(operator, name) for name in IN_PLACE}, **helpers(self), **globals_}

    def parse(self, text: str):
        lines, labels, waiting = [], {}, []
        for line in text.splitlines()[1:]:
            if match := HANDLER.fullmatch(line):
                for entry in waiting:
                    entry[1] = match.groups()
                waiting = []
            elif line.startswith("  L"):
                labels[line.strip(" :")] = len(lines)
            elif line != "    try:" and "# not shown" not in line:
                lines.append([self.python(line.strip()), None])
                if line.startswith("        "):
                    waiting.append(lines[-1])
        return lines, labels

    def python(self, line: str) -> str:
        """The line with names that Python can read."""

        for text, name in self.codes.items():
            line = line.replace(text, name)
        for pattern, wanted in REWRITES:
            line = pattern.sub(wanted, line)
        return line

    def run(self, *arguments):
        """Call with all arguments in frame order."""
        self.globals.update(self.constants)
        for name, value in zip(self.bytecode.argument_names, arguments, strict=True):
            self.variables.set_slot(name, value)
        for name in self.bytecode.cellvars:
            self.variables.make_cell(name)
        at = 0
        while True:
            line, handler = self.lines[at]
            try:
                label = self.step(line)
            except BaseException as error:
                if handler is None:
                    raise
                targets, label = handler
                names = targets.partition(" = ")[0].replace("$", "slot_").split(", ")
                self.variables[names[-1]] = error
            if isinstance(label, Result):
                return label.value
            at = at + 1 if label is None else self.labels[label]

    def step(self, line: str):
        """Do one line; the label to go to, a Result, or None."""
        if match := NEXT.fullmatch(line):
            target, iterator, label = match.groups()
            try:
                value = next(self.value(iterator))
            except StopIteration:
                return label
            self.do(f"{target or '_'} = value_", value_=value)
        elif match := BRANCH.fullmatch(line):
            return match[2] if self.value(match[1]) else None
        elif line.startswith("goto "):
            return line.removeprefix("goto ")
        elif line.startswith("return "):
            return Result(self.value(line.removeprefix("return ")))
        elif line == "raise":
            raise self.handled or RuntimeError("No active exception to reraise")
        else:
            self.do(line)
        return None

    def value(self, text: str):
        return eval(compiled(text, "eval"), self.globals, self.variables)

    def do(self, text: str, **more):
        text = STORED.sub(r"set_slot('\1', \2)", text)
        exec(compiled(text, "exec"), {**self.globals, **more} if more else self.globals, self.variables)


@cache
def compiled(text: str, mode: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(text, text, mode)


class Ambiguous(Exception):
    """Two different nested functions have the same text (lambdas on one line)."""


class Result:
    def __init__(self, value):
        self.value = value


def helpers(machine: Machine) -> dict:
    """The operations that renderings name."""

    def function(code, defaults=None, kwdefaults=None, annotations=None, annotate=None, closure=None):
        made = FunctionType(code, machine.globals, code.co_name, defaults, closure)
        made.__kwdefaults__ = kwdefaults
        return made

    def push_exc_info(error):
        previous, machine.handled = machine.handled, error
        return previous, error

    def pop_except(previous):
        machine.handled = previous

    def reraise(error, offset=None):
        raise error

    def before_with(manager):
        kind = type(manager)
        leave = kind.__exit__.__get__(manager)
        return leave, kind.__enter__(manager)

    def dict_merge(target, source):
        if set(target) & set(source):
            raise TypeError("multiple values")
        target.update(source)

    def match_keys(subject, keys):
        return tuple(subject[key] for key in keys) if all(key in subject for key in keys) else None

    def match_class(subject, kind, names, count):
        if not isinstance(subject, kind):
            return None
        if kind in (str, int) and count == 1:
            return (subject,)
        try:
            return tuple(getattr(subject, name) for name in (*kind.__match_args__[:count], *names))
        except AttributeError:
            return None

    def load_global(name):
        return FunctionType(compile(name, "<global>", "eval"), machine.globals)()

    return {
        **{f.__name__: f for f in (load_global, function, push_exc_info, pop_except, reraise, before_with, dict_merge)},
        "match_keys": match_keys,
        "match_class": match_class,
        "check_exc_match": isinstance,
        "exc_info": lambda error: (type(error), error, error.__traceback__),
        "get_len": len,
        "match_sequence": lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray),
        "match_mapping": lambda value: isinstance(value, Mapping),
        "slot": machine.variables.slot,
        "delete": machine.variables.__delitem__,
        "set_slot": machine.variables.set_slot,
        "load_fast_and_clear": machine.variables.load_fast_and_clear,
        "make_cell": machine.variables.make_cell,
        "NULL": NULL,
    }
