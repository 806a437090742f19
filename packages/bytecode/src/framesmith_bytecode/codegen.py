"""Generates canonical instructions: variables, calls, functions, temporaries, blocks.

It knows values only through `Reconstructable`; what a value is, or which outputs a graph has, is its caller's affair.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import CodeType, ModuleType, UnionType
from typing import Any, Final, Literal, Protocol, get_args

from framesmith_bytecode.model import Bytecode, Instr, Item, Label, Position, Region, expect_bytecode, expect_names
from framesmith_bytecode.ops import CallShape
from framesmith_bytecode.versions import TABLE

_unique = itertools.count()

ContainerKind = Literal["tuple", "list", "set", "map", "string", "slice"]
Condition = Literal["true", "false", "none", "not_none"]
_CONTAINERS: Final = get_args(ContainerKind)
_CONDITIONS: Final = get_args(Condition)
_PUSHED_PARTS: Final = ("defaults", "kwdefaults", "annotations")


class Reconstructable(Protocol):
    """Anything that can emit the instructions which push it."""

    def reconstruct(self, codegen: Codegen, /) -> None:
        """Emit instructions that leave exactly one more value on the stack."""


def unique_name(prefix: str) -> str:
    """A name no other call of this function in the process returns."""
    if not isinstance(prefix, str):
        raise TypeError(f"a name begins with a str, not {prefix!r:.80}")
    return f"__{prefix}_{next(_unique)}"


def _expect(value: object, kind: type | UnionType, taker: str, wanted: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{taker} takes {wanted}, not {value!r:.80}")


def _expect_choice(value: object, choices: tuple[str, ...], taker: str) -> None:
    if value not in choices:
        near = get_close_matches(str(value), choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{taker} takes one of {', '.join(map(repr, choices))}, not {value!r:.80}{hint}")


def _expect_count(value: object, taker: str, least: int = 0) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{taker} takes an int, at least {least}, not {value!r:.80}")


class Codegen:
    """Collects instructions for one function.

    `argnames` are the parameters in frame order, `varnames` further locals. `globals` is the namespace the code will
    run in; `install_global` needs it.
    """

    def __init__(
        self,
        argnames: Sequence[str] = (),
        *,
        varnames: Sequence[str] = (),
        cellvars: Sequence[str] = (),
        freevars: Sequence[str] = (),
        globals: MutableMapping[str, Any] | None = None,
    ) -> None:
        if globals is not None:
            _expect(globals, MutableMapping, "Codegen", "globals=, a dict or None")
        self.argnames = expect_names(argnames, "argnames")
        self.varnames = [*self.argnames, *(v for v in expect_names(varnames, "varnames") if v not in self.argnames)]
        self.cellvars = expect_names(cellvars, "cellvars")
        self.freevars = expect_names(freevars, "freevars")
        self.globals = globals
        self.instructions: list[Item] = []
        self.regions: list[Region] = []
        self.position: Position | None = None
        self.installed: dict[str, object] = {}
        self._installed_names: dict[int, str] = {}
        self.temporaries: dict[int, str] = {}
        self.uses: Counter[int] = Counter()
        self.reused: Collection[int] = ()
        self._template = Bytecode("<generated>", argcount=len(self.argnames))
        self._alive: list[object] = []
        self._counting = False

    @classmethod
    def like(cls, template: Bytecode, globals: MutableMapping[str, Any] | None = None) -> Codegen:
        """A generator for a function with the template's parameters, cells, free variables, name and flags."""
        expect_bytecode(template, "Codegen.like")
        codegen = cls(
            template.argument_names,
            varnames=template.varnames,
            cellvars=template.cellvars,
            freevars=template.freevars,
            globals=globals,
        )
        codegen._template = template
        return codegen

    # -- raw emission

    def emit(self, op: str, arg: object = None) -> None:
        """Append one instruction at the current position."""
        self.instructions.append(Instr(op, arg, self.position))

    def extend(self, items: Iterable[Item]) -> None:
        """Append ready instructions and labels."""
        added = list(items)
        for item in added:
            _expect(item, Instr | Label, "extend", "instructions and labels")
        self.instructions.extend(added)

    def mark(self, label: Label) -> Label:
        """Place the label here."""
        _expect(label, Label, "mark", "a Label")
        self.instructions.append(label)
        return label

    def jump(self, label: Label) -> None:
        """Go to the label."""
        self.emit("JUMP", label)

    def branch(self, label: Label, *, on: Condition) -> None:
        """Pop; go to the label on the condition."""
        _expect_choice(on, _CONDITIONS, "branch's on=")
        self.emit(f"POP_JUMP_IF_{on.upper()}", label)

    # -- variables

    def load_const(self, value: object) -> None:
        """Push the value itself, held by the code object."""
        self.emit("LOAD_CONST", value)

    def is_cell(self, name: str) -> bool:
        """Is the variable a cell or free variable here?"""
        return name in self.cellvars or name in self.freevars

    def load(self, name: str) -> None:
        """Push a local, cell or free variable."""
        self.emit(self._variable_op("LOAD", name), name)

    def store(self, name: str) -> None:
        """Pop into a local, cell or free variable; a name not seen before becomes a local."""
        _expect(name, str, "store", "the name of a variable")
        if name not in self.varnames and not self.is_cell(name):
            self.varnames.append(name)
        self.emit(self._variable_op("STORE", name), name)

    def delete(self, name: str) -> None:
        """Unbind a local, cell or free variable."""
        self.emit(self._variable_op("DELETE", name), name)

    def forget(self, name: str) -> None:
        """Unbind a local, which may be unbound already."""
        if self._variable_op("STORE", name) != "STORE_FAST":
            raise ValueError(f"forget takes a local; {name!r} is a cell or free variable (delete empties it)")
        self.emit("PUSH_NULL")
        self.emit("STORE_FAST", name)

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

    def install_global(self, prefix: str, value: object) -> str:
        """Put the value into the globals under a new name beginning with `prefix`; the same value keeps its name."""
        if self.globals is None:
            raise ValueError("install_global needs a Codegen made with globals=")
        known = self._installed_names.get(id(value))
        if known is not None:
            return known
        name = unique_name(prefix)
        while name in self.globals:
            name = unique_name(prefix)
        self.globals[name] = value
        self.installed[name] = value
        self._installed_names[id(value)] = name
        return name

    def load_installed(self, prefix: str, value: object) -> None:
        """Push a value through a global installed for it."""
        self.load_global(self.install_global(prefix, value))

    def load_module(self, module: ModuleType) -> None:
        """Push a module through a global installed for it."""
        _expect(module, ModuleType, "load_module", "a module (import_name takes a name)")
        self.load_installed("module_" + module.__name__.replace(".", "_"), module)

    def import_name(self, name: str, fromlist: tuple[str, ...] | None = None, level: int = 0) -> None:
        """Push what `import name` binds (with `fromlist` the module itself)."""
        if fromlist is not None:
            fromlist = tuple(expect_names(fromlist, "fromlist", "a tuple of names or None"))
        _expect_count(level, "import_name's level")
        self.load_const(level)
        self.load_const(fromlist)
        self.emit("IMPORT_NAME", name)

    # -- attributes, items, containers

    def load_attr(self, name: str) -> None:
        """Pop an object, push its attribute."""
        self.emit("LOAD_ATTR", name)

    def load_attrs(self, dotted: str) -> None:
        """`load_attr` for each part of a dotted name."""
        _expect(dotted, str, "load_attrs", "a dotted name")
        if not all(dotted.split(".")):
            raise ValueError(f"load_attrs takes a dotted name such as 'a.b', not {dotted!r}")
        for name in dotted.split("."):
            self.load_attr(name)

    def store_attr(self, name: str) -> None:
        """Pop (value, object); set the attribute."""
        self.emit("STORE_ATTR", name)

    def delete_attr(self, name: str) -> None:
        """Pop an object; delete its attribute."""
        self.emit("DELETE_ATTR", name)

    def load_method(self, name: str) -> None:
        """Pop an object, push the two slots `call_method` wants."""
        self.emit("LOAD_METHOD", name)

    def load_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop a container (and the key over it if `on_stack`), push the item."""
        if not on_stack:
            self.load_const(key)
        self.emit("BINARY_SUBSCR")

    def store_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop (value, container) (and the key over them if `on_stack`); container[key] = value."""
        if not on_stack:
            self.load_const(key)
        self.emit("STORE_SUBSCR")

    def delete_item(self, key: object = None, *, on_stack: bool = False) -> None:
        """Pop a container (and the key over it if `on_stack`); del container[key]."""
        if not on_stack:
            self.load_const(key)
        self.emit("DELETE_SUBSCR")

    def build(self, kind: ContainerKind, n: int) -> None:
        """Pop n values (n pairs for a map) into a container."""
        _expect_choice(kind, _CONTAINERS, "build")
        self.emit(f"BUILD_{kind.upper()}", n)

    def unpack(self, n: int) -> None:
        """Pop a sequence, push its n values, the first on top."""
        self.emit("UNPACK_SEQUENCE", n)

    # -- the stack

    def pop(self, n: int = 1) -> None:
        """Drop the top n values."""
        _expect_count(n, "pop")
        for _ in range(n):
            self.emit("POP_TOP")

    def dup(self) -> None:
        """Push the top once more."""
        self.emit("COPY", 1)

    def copy(self, n: int) -> None:
        """Push the n-th value from the top once more."""
        self.emit("COPY", n)

    def swap(self, n: int = 2) -> None:
        """Exchange the top with the n-th value from the top."""
        self.emit("SWAP", n)

    def rot_n(self, n: int) -> None:
        """Move the top under the n - 1 values below it: [a, b, c] becomes [c, a, b] for n = 3."""
        _expect_count(n, "rot_n")
        for depth in range(n, 1, -1):
            self.emit("SWAP", depth)

    def lift_n(self, n: int) -> None:
        """Move the n-th value from the top to the top: [a, b, c] becomes [b, c, a] for n = 3; undoes `rot_n`."""
        _expect_count(n, "lift_n")
        for depth in range(2, n + 1):
            self.emit("SWAP", depth)

    def restore_stack(self, values: Iterable[Reconstructable | None]) -> None:
        """Push values from the bottom up; None stands for a NULL slot."""
        for value in values:
            if value is None:
                self.emit("PUSH_NULL")
            else:
                self(value)

    # -- calls

    def push_null(self) -> None:
        """Push NULL."""
        self.emit("PUSH_NULL")

    def push_callable(self, emit: Callable[[], object]) -> None:
        """Run `emit`, which must push one callable, and place NULL on its side of it."""
        if TABLE.null_first:
            self.push_null()
            emit()
        else:
            emit()
            self.push_null()

    def callable_on_stack(self) -> None:
        """Turn the callable on top into the two slots a call wants."""
        self.push_null()
        if TABLE.null_first:
            self.swap(2)

    def call(self, argc: int, kwnames: Sequence[str] = ()) -> None:
        """Call with `argc` arguments, the last `len(kwnames)` of them keywords, over the two slots."""
        self.emit("CALL", CallShape(argc, tuple(expect_names(kwnames, "kwnames"))))

    def call_method(self, argc: int, kwnames: Sequence[str] = ()) -> None:
        """Call what `load_method` pushed."""
        self.call(argc, kwnames)

    def call_ex(self, has_kwargs: bool) -> None:
        """Call with a tuple and, if `has_kwargs`, a dict on the stack, over the two slots."""
        self.emit("CALL_FUNCTION_EX", has_kwargs)

    def call_installed(self, prefix: str, function: Callable[..., object], arguments: Sequence[Any] = ()) -> None:
        """Call a function installed as a global with reconstructable arguments; pushes the result."""
        self.push_callable(lambda: self.load_installed(prefix, function))
        for argument in arguments:
            self(argument)
        self.call(len(arguments))

    def make_function(self, code: CodeType, closure: Sequence[str] = (), parts: Collection[str] = ()) -> None:
        """Push a function of the code, closing over the named variables of this one.

        `parts` say what the caller has pushed before, in this order: "defaults" (a tuple), "kwdefaults" (a dict),
        "annotations" (a tuple of names and values in turn). `closure` has a variable for each of the code's
        `co_freevars`, in their order.
        """
        _expect(code, CodeType, "make_function", "a code object (encode(codegen.bytecode(name)) makes one)")
        closure = expect_names(closure, "closure")
        for part in expect_names(parts, "parts"):
            _expect_choice(part, _PUSHED_PARTS, "make_function's parts")
        if len(closure) != len(code.co_freevars):
            raise ValueError(f"{code.co_name} has free variables {code.co_freevars}, got {tuple(closure)} for them")
        given = set(parts)
        if closure:
            for name in closure:
                self.load_closure(name)
            self.build("tuple", len(closure))
            given.add("closure")
        self.load_const(code)
        self.emit("MAKE_FUNCTION", frozenset(given))

    def return_value(self) -> None:
        """Return the top."""
        self.emit("RETURN_VALUE")

    def raise_(self, argc: int = 1) -> None:
        """Raise: 1 pops the exception, 2 pops (exception, cause), 0 raises the handled one again."""
        self.emit("RAISE_VARARGS", argc)

    # -- values and temporaries

    def new_temp(self, prefix: str = "tmp") -> str:
        """A fresh local."""
        name = unique_name(prefix)
        while name in self.varnames or self.is_cell(name):
            name = unique_name(prefix)
        self.varnames.append(name)
        return name

    def __call__(self, value: Reconstructable, *, allow_cache: bool = True) -> None:
        """Push a value: from its temporary if it has one, else by its `reconstruct`.

        Values are told apart by identity. A value in `reused` (ids, found by a dry run's `multiply_used`) is put into
        a temporary the first time.
        """
        if not hasattr(value, "reconstruct"):
            raise TypeError(f"{value!r:.80} has no method reconstruct(codegen); load_const pushes a constant")
        key = id(value)
        self.uses[key] += 1
        if allow_cache and key in self.temporaries:
            self.load(self.temporaries[key])
            return
        if allow_cache and self._counting and self.uses[key] > 1:
            self.load_const(None)  # for real it would come from a temporary
            return
        self._alive.append(value)
        value.reconstruct(self)
        if allow_cache and key in self.reused:
            self.dup()
            self.store(self.temporary_of(value))

    def temporary_of(self, value: object, name: str | None = None) -> str:
        """Name the temporary that holds (from now on) the value; a new one unless `name` is given."""
        self._alive.append(value)
        self.temporaries[id(value)] = name or self.new_temp()
        return self.temporaries[id(value)]

    def multiply_used(self) -> set[int]:
        """Ids of the values pushed more than once so far."""
        return {key for key, count in self.uses.items() if count > 1}

    def dry_run(self) -> Codegen:
        """A generator of the same variables whose instructions nobody needs: it counts uses of values."""
        copy = Codegen.like(self._template, {} if self.globals is not None else None)
        copy.argnames, copy.varnames = list(self.argnames), list(self.varnames)
        copy.cellvars, copy.freevars = list(self.cellvars), list(self.freevars)
        copy.temporaries = dict(self.temporaries)
        copy._counting = True
        return copy

    # -- blocks

    @contextmanager
    def protected(self, handler: Label, *, lasti: bool = False, depth: int | None = None) -> Iterator[None]:
        """Instructions emitted inside go to `handler` on an exception (see `Region`)."""
        _expect(handler, Label, "protected", "a Label")
        start = self.mark(Label())
        yield
        end = self.mark(Label())
        self.regions.append(Region(start, end, handler, depth, lasti))

    def try_except(self, body: Callable[[], object], handler: Callable[[], object]) -> None:
        """`body`, or `handler` after any exception; both leave the stack as it was. The handler runs with the
        exception on top of the stack, which it must leave there."""
        caught, cleanup, done = Label(), Label(), Label()
        with self.protected(caught):
            body()
        self.jump(done)
        self.mark(caught)
        with self.protected(cleanup, lasti=True):
            self.emit("PUSH_EXC_INFO")
            handler()
        self.pop()
        self.emit("POP_EXCEPT")
        self.jump(done)
        self._reraise_cleanup(cleanup)
        self.mark(done)

    def try_finally(self, body: Callable[[], object], final: Callable[[], object]) -> None:
        """`body` then `final`; after an exception `final`, then the exception goes on."""
        caught, cleanup, done = Label(), Label(), Label()
        with self.protected(caught):
            body()
        final()
        self.jump(done)
        self.mark(caught)
        with self.protected(cleanup, lasti=True):
            self.emit("PUSH_EXC_INFO")
            final()
            self.emit("RERAISE", 0)
        self._reraise_cleanup(cleanup)
        self.mark(done)

    def with_block(self, body: Callable[[], object], target: str | None = None) -> None:
        """A `with` statement over the context manager on top: enters, binds or drops, runs `body`, exits once."""
        caught, cleanup, suppressed, done = Label(), Label(), Label(), Label()
        self.emit("BEFORE_WITH")
        self.pop() if target is None else self.store(target)
        with self.protected(caught, lasti=True):
            body()
        self.exit_with()
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
        self.pop(2)
        self.jump(done)
        self._reraise_cleanup(cleanup)
        self.mark(done)

    def exit_with(self) -> None:
        """Call the exit function on top of the stack without an exception; drops it."""
        for _ in range(3):
            self.load_const(None)
        self.call(2)
        self.pop()

    def _reraise_cleanup(self, cleanup: Label) -> None:
        self.mark(cleanup)
        self.emit("COPY", 3)
        self.emit("POP_EXCEPT")
        self.emit("RERAISE", 1)

    # -- result

    def bytecode(self, name: str | None = None) -> Bytecode:
        """The function made so far, with a RESUME in front if it has none."""
        template = self._template
        items = list(self.instructions)
        if not any(isinstance(item, Instr) and item.op == "RESUME" for item in items):
            items.insert(0, Instr("RESUME", 0, Position(template.firstlineno, template.firstlineno, None, None)))
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
