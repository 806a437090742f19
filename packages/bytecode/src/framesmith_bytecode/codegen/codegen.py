"""Generation of canonical instructions: variables, calls, functions, temporaries, blocks.

The caller's values are known through `Reconstructable` only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from types import CodeType
from typing import Any, Protocol

from framesmith_bytecode.codegen.emission import Emitter, expect, start_of
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label, expect_bytecode, expect_names


class Reconstructable(Protocol):
    """A value that can emit instructions which push it."""

    def reconstruct(self, codegen: Codegen, /) -> None:
        """Emit instructions that leave exactly one more value on the stack."""


class Codegen(Emitter):
    """Collects instructions for one function.

    `argnames` are the parameters in frame order, `varnames` further locals. `position`, the source range of the
    next instructions, is at first the line in which the function begins.
    """

    def __init__(
        self,
        argnames: Sequence[str] = (),
        *,
        varnames: Sequence[str] = (),
        cellvars: Sequence[str] = (),
        freevars: Sequence[str] = (),
    ) -> None:
        super().__init__(start_of(1))
        self.argnames = expect_names(argnames, "argnames")
        self.varnames = [*self.argnames, *(v for v in expect_names(varnames, "varnames") if v not in self.argnames)]
        self.cellvars = expect_names(cellvars, "cellvars")
        self.freevars = expect_names(freevars, "freevars")
        #: The local of each value that is in a temporary, by the value's id.
        self.temporaries: dict[int, str] = {}
        #: The values that a generated call will return, in order (see `load_output`).
        self.outputs: list[Any] = []
        self._output_indices: dict[int, int] = {}
        self._outputs_local: str | None = None
        self._template = Bytecode("<generated>", argcount=len(self.argnames))
        self._alive: list[object] = []
        self._numbers = itertools.count()

    @classmethod
    def like(cls, template: Bytecode) -> Codegen:
        """A generator for a function with the template's parameters, cells, free variables, name and flags."""
        expect_bytecode(template, "Codegen.like")
        codegen = cls(
            template.argument_names,
            varnames=template.varnames,
            cellvars=template.cellvars,
            freevars=template.freevars,
        )
        codegen._template = template
        codegen.position = start_of(template.firstlineno)
        return codegen

    # -- variables

    def is_cell(self, name: str) -> bool:
        """Whether the variable is a cell or free variable."""
        return name in self.cellvars or name in self.freevars

    def load(self, name: str) -> None:
        """Push a local, cell or free variable."""
        self.emit(self._variable_op("LOAD", name), name)

    def store(self, name: str) -> None:
        """Pop into a local, cell or free variable; a name not seen before becomes a local."""
        expect(name, str, "store", "the name of a variable")
        if name not in self.varnames and not self.is_cell(name):
            self.varnames.append(name)
        self.emit(self._variable_op("STORE", name), name)

    def delete(self, name: str) -> None:
        """Unbind a local, cell or free variable."""
        self.emit(self._variable_op("DELETE", name), name)

    def forget(self, name: str) -> None:
        """Unbind a local that may be unbound already."""
        if self._variable_op("STORE", name) != "STORE_FAST":
            raise ValueError(f"forget takes a local; {name!r} is a cell or free variable (delete empties it)")
        self.emit("PUSH_NULL")
        self.emit("STORE_FAST", name)

    def forget_all(self, keep: Collection[str] = ()) -> None:
        """Unbind the arguments and all locals that this code has stored, but for those in `keep`.

        Values without their temporaries are made again when they are pushed.
        """
        bound = {item.arg for item in self.instructions if isinstance(item, Instr) and item.op == "STORE_FAST"}
        bound |= {self._outputs_local, *(name for name in self.argnames if not self.is_cell(name))}
        gone = [name for name in self.varnames if name in bound and name not in keep]
        for name in gone:
            self.forget(name)
        self.temporaries = {key: name for key, name in self.temporaries.items() if name not in gone}

    def load_closure(self, name: str) -> None:
        """Push the cell of a cell or free variable."""
        if not self.is_cell(name):
            raise ValueError(f"{name!r} is neither a cell nor a free variable of this function")
        self.emit("LOAD_CLOSURE", name)

    def _variable_op(self, verb: str, name: str) -> str:
        if self.is_cell(name):
            return f"{verb}_DEREF"
        if name not in self.varnames:
            raise ValueError(
                f"{name!r} is not a variable of this function; locals are {self.varnames}, cells {self.cellvars}, "
                f"free variables {self.freevars} (use load_global for a global)"
            )
        return f"{verb}_FAST"

    def load_global(self, name: str) -> None:
        """Push a global or builtin."""
        self.emit("LOAD_GLOBAL", name)

    def store_global(self, name: str) -> None:
        """Pop into a global."""
        self.emit("STORE_GLOBAL", name)

    def delete_global(self, name: str) -> None:
        """Delete a global."""
        self.emit("DELETE_GLOBAL", name)

    def push_call(
        self, function: Callable[..., object], values: Iterable[Reconstructable] = (), constants: Sequence[object] = ()
    ) -> None:
        """Push `function(*values, *constants)`."""
        self.push_function(function)
        values = list(values)
        self.restore_stack(values)
        for constant in constants:
            self.load_const(constant)
        self.call(len(values) + len(constants))

    def restore_stack(self, values: Iterable[Reconstructable | None]) -> None:
        """Push values from the bottom up; None stands for a NULL slot."""
        for value in values:
            if value is None:
                self.push_null()
            else:
                self(value)

    def spill_stack(self, names: Sequence[str]) -> None:
        """Pop into locals, named from the bottom of the stack up; NULL leaves its local unbound."""
        for name in reversed(expect_names(names, "names")):
            self.store(name)

    def make_function(self, code: CodeType, closure: Sequence[str] = ()) -> None:
        """Push a function of the code with a closure of variables of this one, one for each of its `co_freevars`."""
        expect(code, CodeType, "make_function", "a code object (encode(codegen.bytecode(name)) makes one)")
        closure = expect_names(closure, "closure")
        if len(closure) != len(code.co_freevars):
            raise ValueError(f"{code.co_name} has free variables {code.co_freevars}, got {tuple(closure)} for them")
        if closure:
            for name in closure:
                self.load_closure(name)
            self.build("tuple", len(closure))
        self.load_const(code)
        self.emit("MAKE_FUNCTION", frozenset({"closure"} if closure else ()))

    # -- values and temporaries

    def new_temp(self, prefix: str = "tmp") -> str:
        """A new local. Names are the same in all generated code, because CPython 3.12 never frees an interned name."""
        name = f"__{prefix}_{next(self._numbers)}"
        while name in self.varnames or self.is_cell(name):
            name = f"__{prefix}_{next(self._numbers)}"
        self.varnames.append(name)
        return name

    def __call__(self, value: Reconstructable) -> None:
        """Push a value (known by identity): from its temporary if it has one, else by its `reconstruct`."""
        if not hasattr(value, "reconstruct"):
            raise TypeError(f"{value!r:.80} has no method reconstruct(codegen); load_const pushes a constant")
        name = self.temporaries.get(id(value))
        if name is None:
            value.reconstruct(self)
        else:
            self.load(name)

    def keep(self, value: Reconstructable) -> str:
        """Return the temporary of the value; it is made if it has none."""
        if id(value) not in self.temporaries:
            self(value)
            self.store_temporary(value)
        return self.temporaries[id(value)]

    def store_temporary(self, value: object) -> None:
        """Pop into a new temporary of the value, from which it is pushed later."""
        name = self.new_temp()
        self._alive.append(value)
        self.temporaries[id(value)] = name
        self.store(name)

    # -- the outputs of a generated call

    def load_output(self, value: object) -> None:
        """Push the value's item of the tuple returned by the generated call and popped by `store_outputs`.

        The first use of a value (known by identity) appends it to `outputs`. Therefore the call is generated after all
        uses of its results, `in_front` of them.
        """
        index = self._output_indices.setdefault(id(value), len(self.outputs))
        if index == len(self.outputs):
            self.outputs.append(value)
        self.load(self._outputs_name())
        self.load_item(index)

    def store_outputs(self) -> None:
        """Pop the tuple of the `outputs`."""
        self.store(self._outputs_name())

    def _outputs_name(self) -> str:
        if self._outputs_local is None:
            self._outputs_local = self.new_temp("outputs")
        return self._outputs_local

    # -- blocks

    def with_block(self, body: Callable[[], object], target: str | None = None) -> None:
        """A `with` statement over the context manager on top: enters, binds or drops, runs `body`, exits once.

        `body` must not return or jump away.
        """
        caught, cleanup, suppressed, done = Label(), Label(), Label(), Label()
        self.emit("BEFORE_WITH")
        self.pop() if target is None else self.store(target)
        begin = len(self.instructions)
        with self.protected(caught, lasti=True):
            body()
        self._expect_to_end(begin, "body of with_block")
        self._exit_with()
        self.jump(done)
        self.mark(caught)
        with self.protected(cleanup, lasti=True):
            self.emit("PUSH_EXC_INFO")
            self.emit("WITH_EXCEPT_START")
            self.branch(suppressed, on="true")
            self.emit("RERAISE", 2)
            self.mark(suppressed)
            self.pop()
        self.emit("POP_EXCEPT")
        self.pop(1 + TABLE.exit_slots)
        self.jump(done)
        self._reraise_cleanup(cleanup)
        self.mark(done)

    # -- result

    def bytecode(self, name: str | None = None) -> Bytecode:
        """The function made so far, with a RESUME as first instruction if it has none."""
        template = self._template
        items = list(self.instructions)
        if not any(isinstance(item, Instr) and item.op == "RESUME" for item in items):
            items.insert(0, Instr("RESUME", 0, start_of(template.firstlineno)))
        return Bytecode(
            name or template.name,
            items,
            list(self.regions),
            name or template.qualname or template.name,
            template.filename,
            template.firstlineno,
            template.argcount,
            template.posonlyargcount,
            template.kwonlyargcount,
            template.flags,
            list(self.varnames),
            list(self.cellvars),
            list(self.freevars),
            template.consts[:1],
        )
