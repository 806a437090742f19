"""Graph breaks: every reason to give up on an instruction is a registered kind.

A kind is declared once, beside the code that raises it, with `register_break`; documentation, `explain` and tests read
the registry. A raised `GraphBreak` loses no work: the interpreter restarts and ends the graph just before the
instruction of the outermost frame that was running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from framesmith_bytecode import resumed_function

if TYPE_CHECKING:
    from framesmith_guards import Location, Source


@dataclass(frozen=True, slots=True)
class BreakKind:
    """One way a graph can end early: what happened, why it cannot be traced, what a user can do.

    `passing`: an exception of this call; the next one may be compiled.
    """

    id: str
    what: str
    why: str
    hint: str
    passing: bool = False


BREAKS: dict[str, BreakKind] = {}

#: The identity of a break: its kind and its instruction.
Site = tuple[object, ...]


def register_break(id: str, *, what: str, why: str, hint: str, passing: bool = False) -> BreakKind:
    """Declare a kind of break. Raises ValueError when the id is taken."""
    if id in BREAKS:
        raise ValueError(f"break id {id!r} is registered twice; ids are stable and unique")
    kind = BreakKind(id, what, why, hint, passing)
    BREAKS[id] = kind
    return kind


class GraphBreak(Exception):
    """The current instruction cannot be traced. `detail` names the object or operation.

    Who adds what it does not know where it is raised: `framesmith_guards.stacks.note_location` the `user_location`;
    a cached function its `conditions`; a tensor's method call clears `before_effects`, where its caller may have had
    some; `interpreter.inlining` sets `site_of_cause`.
    """

    def __init__(self, kind: BreakKind, detail: str = "", *, before_effects: bool = False) -> None:
        super().__init__(f"[{kind.id}] {kind.what}" + (f": {detail}" if detail else ""))
        self.kind = kind
        self.detail = detail
        self.user_location: Location | None = None
        #: (source, kind of guard, expected): without these the instruction might not break.
        self.conditions: tuple[tuple[Source, str, object], ...] = ()
        #: Whether the instruction, in any frame, had no effect yet.
        self.before_effects = before_effects
        #: The site of an earlier break because of which the function is no longer inlined.
        self.site_of_cause: Site | None = None

    @property
    def in_callee(self) -> bool:
        """Whether it arose in an inlined call."""
        return self.user_location is not None and self.user_location.outer is not None

    @property
    def site(self) -> Site:
        """The instruction and the kind: equal for one break, however often and in whichever frame it occurs.

        Only the kind where no instruction is to blame, since details contain numbers and names that vary.
        """
        at = self.user_location
        if self.site_of_cause is not None:
            return self.site_of_cause
        if at is None:
            return (self.kind.id,)
        return self.kind.id, at.filename, resumed_function(at.function), at.lineno, at.column

    def explain(self) -> str:
        """Return the reason, the cause and the remedy as text for the user."""
        at = self.user_location
        trace = "" if at is None else f"\n{at.stack_trace.rstrip()}"
        return f"{self}{trace}\n  why: {self.kind.why}\n  what to do: {self.kind.hint}"


def drop_tracebacks(error: BaseException, outside: BaseException | None) -> None:
    """Drop the tracebacks of a stored error and of its causes: they hold the tracer's frames.

    The exception handled around the traced call (`outside`) is the program's: errors no longer lead to it.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            if found.__context__ is outside:
                found.__context__ = None
            waiting += [found.__cause__, found.__context__]


UNSUPPORTED_OPERATION = register_break(
    "unsupported-operation",
    what="an operation is not defined for a traced value",
    why="the tracer has no rule for this operation on this type of value",
    hint="move the operation out of the compiled function, or wrap it in framesmith.disable",
)
UNSUPPORTED_CALL = register_break(
    "unsupported-call",
    what="a call cannot be traced",
    why="the callee is neither Python code that can be inlined, nor a torch function, nor a known builtin",
    hint="the call runs eagerly between two graphs; hoist it out of hot code if that is too slow",
)
NOT_CONSTANT = register_break(
    "not-constant",
    what="a compile-time constant was needed",
    why="the value depends on tensor data or on state the tracer does not follow",
    hint="pass the value as a plain Python number, string or tuple",
)
READS_OWN_LOCALS = register_break(
    "reads-own-locals",
    what="the graph breaks in a function that may look at all its local variables",
    why="compiled code keeps only the variables that are still needed, beside its own",
    hint="call locals(), vars(), dir(), eval() or exec() in a function of its own",
)
INTERPRETER_ACCESS = register_break(
    "interpreter-access",
    what="a builtin that looks at or runs code is called",
    why="it works on the running frame, which does not exist in compiled code",
    hint="call it outside the compiled function",
)
OPAQUE_DESCRIPTOR = register_break(
    "opaque-descriptor",
    what="an attribute is computed by a descriptor that is not written in Python",
    why="its code cannot be inlined and may have effects",
    hint="read the attribute outside the compiled function",
)
C_METHOD = register_break(
    "c-method",
    what="a method implemented in C is called on an object",
    why="the tracer has no rule for this method",
    hint="move the call out of the compiled function",
)
DATA_DEPENDENT = register_break(
    "tensor-data-to-python",
    what="a tensor's data is read into Python",
    why="the graph has not run yet while tracing, so the number is unknown",
    hint="keep the value a tensor (torch.where, masks), or do this outside the compiled function",
)
DATA_DEPENDENT_BRANCH = register_break(
    "tensor-data-branch",
    what="a branch depends on a tensor's data",
    why="the outcome is known only when the graph has run",
    hint="use torch.where or torch.cond; the program is right either way, in two graphs",
)
COMPILER_CALL = register_break(
    "compiler-call",
    what="the compiler itself is called from compiled code",
    why="it changes how later frames are compiled",
    hint="call it outside the compiled function",
)
