"""The frame callback: traces a frame and returns an entry of guards and residual code, or runs the frame eagerly."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

from framesmith_aten.contract import AssumptionFailed, Runner
from framesmith_dynamo.admission.costly_callees import CostlyCallees
from framesmith_dynamo.admission.frame_policy import skips_callees, why_not_compiled
from framesmith_dynamo.admission.global_state import (
    global_state_guards,
    lasting_state,
    saved_tensor_hooks_covered,
    why_unsupported_state,
)
from framesmith_dynamo.breaks import GraphBreak, drop_tracebacks
from framesmith_dynamo.convert_frame.automatic_dynamic import Histories
from framesmith_dynamo.convert_frame.compile_ids import next_compile_id
from framesmith_dynamo.convert_frame.dynamic_marks import MarkViolated
from framesmith_dynamo.convert_frame.errors import (
    ERROR_ON_BREAK,
    FULLGRAPH,
    BreakNotAllowed,
    EagerNotAllowed,
    NotRaised,
    RecompileLimit,
)
from framesmith_dynamo.convert_frame.events import EventKind, FrameEvent
from framesmith_dynamo.convert_frame.switches import answer_of_marks, note_call, why_not_by_stance
from framesmith_dynamo.convert_frame.torch_hook import hide_from_torch_compile, skipped_by_torch
from framesmith_dynamo.interpreter.loop import Ending, EscapedException, outermost_frame, run_outermost
from framesmith_dynamo.residual.aliasing import alias_guards
from framesmith_dynamo.residual.codegen import CompileGraph, Residual, RunnerOf, cannot_rebuild
from framesmith_dynamo.residual.resume import emit_break
from framesmith_dynamo.residual.shared_memory import over_memory, running_over_memory
from framesmith_dynamo.torch_switches import resets, settings, stances
from framesmith_dynamo.trace_state import RestartTrace, SpeculationLog
from framesmith_dynamo.values.known import KnownValue
from framesmith_frames import RUN_ONCE, SKIP, Entry, FrameInfo, entries
from framesmith_guards import (
    CheckProgram,
    CompileContext,
    Guard,
    Location,
    compile_context,
    compile_guards,
    explain,
    located,
    location_of,
    state_guards,
)
from framesmith_sideeffects import CannotLoad, NotMadeHere

if TYPE_CHECKING:
    from framesmith_dynamo.graph.finished import FinishedGraph
    from framesmith_dynamo.graph.symbols import Symbols
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.residual.shared_memory import Sharing

MAX_RESTARTS = 20
#: Entries without a graph per code object: more are not worth their guards.
MAX_GRAPHLESS = 4
NOTHING_TO_COMPILE = "no tensor operations were found in several compilations"
#: Calls of one code object whose trace may end in an exception.
MAX_RAISED = 16
COMPILED_ELSEWHERE = "another thread is compiling it"
COMPUTED_GLOBALS = "its globals are of a subclass of dict, which may compute names"
#: Seconds for which a call that must not run eagerly waits for a thread that compiles its function.
PATIENCE = 600.0
IN_ORDER = "inputs that its graph changes share memory with others"

Answer = Entry | SKIP | RUN_ONCE


LEAVE_OUT = (
    "What to do: mark it with framesmith.disable, which saves the attempts, or move what is in the way out of it."
)
WHAT_TO_DO = "What to do: keep it the same from call to call, pass a number as a tensor, or raise recompile_limit."
#: The remedy where a size or number was a symbol, and the program asked for its value.
WHAT_TO_DO_FOR_SYMBOLS = (
    "What to do: compute with the number there instead of asking what it is (an index into a list, "
    "the length of one, a "
    "loop's count, a branch), pad to a few sizes, or raise recompile_limit."
)
INSTEAD_OF_A_MARK = "use maybe_mark_dynamic where a size may be compiled for alone"


def ignore(event: FrameEvent) -> None:
    """An `on_event` that does nothing."""


class GuardsRefused(RuntimeError):
    """The guards of a finished trace reject the call that was traced."""


class FrameConverter:
    """The callback of `framesmith_frames.set_callback`: traces a frame and answers an Entry, SKIP or RUN_ONCE.

    `compile_graph(module, inputs)` returns a callable of the graph's flat inputs that returns a tuple, or a `Runner` of
    one. `fullgraph`: raise BreakNotAllowed at a graph break, and an error of its own wherever else a call that could be
    compiled would run eagerly (limit, failure, a failed assumption about data); where nothing can be compiled, the
    answer is SKIP or RUN_ONCE, which a CompiledFunction with `refuses` rejects. `dynamic`: symbolic sizes and numbers
    are those that have changed (None), all (True), or none (False). `recompile_limit`: entries per code object; None:
    torch's configuration (8). Beyond it the code runs eagerly. `strict`: raise where the tracer or compiler fails or
    the limit is reached. `histories`: those of another converter, to continue from. Exceptions leave through the
    callback: an error handler of frames that raises them again brings them to the user.
    """

    def __init__(
        self,
        compile_graph: CompileGraph,
        *,
        fullgraph: bool = False,
        recompile_limit: int | None = None,
        dynamic: bool | None = None,
        on_event: Callable[[FrameEvent], object] = ignore,
        strict: bool = False,
        histories: Histories | None = None,
    ) -> None:
        if not callable(compile_graph):
            raise TypeError(
                f"compile_graph is a callable (module, inputs) -> callable, not {type(compile_graph).__name__}"
            )
        if recompile_limit is not None and recompile_limit < 1:
            raise ValueError(f"recompile_limit is at least 1, not {recompile_limit}")
        self.compile_graph = compile_graph
        self.fullgraph = fullgraph
        self.recompile_limit = recompile_limit
        self.on_event = on_event
        self.strict = strict
        self.histories = histories or Histories(dynamic)
        #: Code objects whose first call has run eagerly under the stance `eager_then_compile`.
        self._begun: weakref.WeakSet[CodeType] = weakref.WeakSet()
        self._callees = CostlyCallees()
        self._graphless: weakref.WeakSet[CodeType] = weakref.WeakSet()
        #: The compiling thread by code object. Other threads run eagerly: waiting might deadlock.
        self._compiling: dict[CodeType, int] = {}
        self._compiled = threading.Condition()
        self._raised: weakref.WeakKeyDictionary[CodeType, int] = weakref.WeakKeyDictionary()
        #: For each code object, the failed guards of nearest entries, and how often each failed.
        self._missed: weakref.WeakKeyDictionary[CodeType, Counter[str]] = weakref.WeakKeyDictionary()

    @skipped_by_torch
    def __call__(self, info: FrameInfo) -> Answer:
        """Answer a call for which no entry applies."""
        answer = answer_of_marks(info)
        if answer is not None:
            return answer
        names = cast(FunctionType, info.function).__globals__
        reason = why_not_compiled(info.code, names)
        if reason is not None:
            return SKIP(reason, recursive=skips_callees(info.code, names))
        if type(names) is not dict:  # those of annotationlib, with which it asks functions for annotations
            return self._run_once(info.code, COMPUTED_GLOBALS, quiet=True)
        resets.register()
        with compile_context(CompileContext(next_compile_id(info.code))):
            reason = why_unsupported_state()
            if reason is not None:
                return self._left_eager(info.code, reason)
            reason = self._check_stance(info)
            if reason is not None:
                self._report("run-once", info.code, reason)
                return RUN_ONCE(reason, quiet=True)
            if not self._begin(info.code):
                return self._run_once(info.code, COMPILED_ELSEWHERE, quiet=not self.fullgraph)
            try:
                settings.warn_of_ignored_settings()
                with saved_tensor_hooks_covered():
                    return self._check_recompile(info) or self._compile(info)
            finally:
                self._compiling.pop(info.code, None)
                if self.fullgraph:
                    with self._compiled:
                        self._compiled.notify_all()

    def _begin(self, code: CodeType) -> bool:
        """Whether this thread compiles the code. With `fullgraph`, it waits for its turn."""
        mine = threading.get_ident()
        if self._compiling.setdefault(code, mine) == mine:
            return True
        if not self.fullgraph:
            return False
        with self._compiled:
            return self._compiled.wait_for(lambda: self._compiling.setdefault(code, mine) == mine, PATIENCE)

    def _check_stance(self, info: FrameInfo) -> str | None:
        """Return why the stance of torch.compile makes the call run eagerly, or None; raises StanceForbids."""
        stance = stances.stance()
        if stance == stances.EAGER_THEN_COMPILE and info.code not in self._begun:
            self._begun.add(info.code)
            note_call(self.histories.of(info.code), info)
            return stances.FIRST_CALL
        if stance == stances.DEFAULT and not settings.setting("error_on_recompile", False):
            return None
        known = compiled_entries(info.code)
        if any(_applies(entry, info) for entry in known):
            return None
        return why_not_by_stance(stance, info, known)

    def _run_once(self, code: CodeType, why: str, *, quiet: bool = False, recursive: bool = False) -> RUN_ONCE:
        self._report("run-once", code, why)
        return RUN_ONCE(why, quiet=quiet, recursive=recursive)

    def _left_eager(self, code: CodeType, why: str) -> Answer:
        """Run the call eagerly, and later ones in the same state of torch, of which the hook then asks nobody.

        With `fullgraph` each such call is refused.
        """
        check = None if self.fullgraph else lasting_state()
        if check is None:
            return self._run_once(code, why)
        self._report("run-once", code, why)
        return Entry(check, code, complete=True, eager=why)

    def _compile(self, info: FrameInfo) -> Answer:
        try:
            return self._convert(info)
        except (BreakNotAllowed, EagerNotAllowed, MarkViolated, RecompileLimit):
            raise
        except Exception as error:
            self._note_callee(error, info.code)
            self.report_error(info.code, error)
            if self.strict or self.fullgraph:
                raise
            return SKIP(f"the compiler failed: {type(error).__name__}: {error}", quiet=True)

    def _report(self, kind: EventKind, code: CodeType, detail: str = "", **more: Any) -> None:
        self.on_event(FrameEvent(kind, code, detail, trace_id=CompileContext.current_trace_id(), **more))

    def report_graph_error(self, code: CodeType, error: Exception) -> None:
        """Report an error of a compiled graph that the program itself does not raise."""
        if isinstance(error, AssumptionFailed):
            if self.fullgraph:
                raise EagerNotAllowed(code.co_qualname, f"an assumption of its graph does not hold: {error}")
            self._report("assumption", code, str(error))
        else:
            self.report_error(code, error)

    def report_error(self, code: CodeType, error: Exception) -> None:
        """Report an error of the compiler's own."""
        self._report("error", code, f"{type(error).__name__}: {error}", error=error, location=location_of(error))

    def _note_callee(self, error: Exception, caller: CodeType) -> None:
        """Record the error that ended an attempt, and report a function that is no longer inlined because of it."""
        refused = self._callees.note(error, caller)
        if refused is not None:
            self._report_costly(refused[0], f"is no longer inlined: {refused[1]}")

    def _report_costly(self, code: CodeType, why: str) -> None:
        self._report("costly", code, f"{why}. {LEAVE_OUT}")

    # Recompilation

    def _check_recompile(self, info: FrameInfo) -> Answer | None:
        known = compiled_entries(info.code)
        if not known:
            return None
        compiled_meanwhile = next((entry for entry in known if _applies(entry, info)), None)
        if compiled_meanwhile is not None:
            return compiled_meanwhile
        nearest = explain(known, info)[0]
        missed = self._missed.setdefault(info.code, Counter())
        missed[_subject(nearest.guard)] += 1
        self._report("recompile", info.code, str(nearest), location=_used_at(nearest.guard))
        if len(known) < settings.recompile_limit(self.recompile_limit):
            return None
        [(subject, times)] = missed.most_common(1)
        message = (
            f"compiled {len(known)} times, the limit, and runs eagerly where no entry applies; {subject} has "
            f"changed {times} time{'s' * (times > 1)}, at last {nearest}{_at_location(_used_at(nearest.guard))}. "
            f"{_remedy(nearest.guard)}"
        )
        if self.strict or self.fullgraph or settings.setting("fail_on_recompile_limit_hit", False):
            raise RecompileLimit(f"{info.code.co_qualname}: {message}")
        self._report("limit", info.code, message, location=_used_at(nearest.guard))
        self._report("skip", info.code, message)
        return SKIP(message, quiet=True)

    # Conversion

    def _convert(self, info: FrameInfo) -> Answer:
        log = SpeculationLog()
        refused = False
        for _ in range(MAX_RESTARTS):
            try:
                return self._attempt(info, log)
            except GuardsRefused:  # another thread may have changed what the trace has read
                if refused:
                    raise
                refused, log = True, SpeculationLog(outside=log.outside)
            except RestartTrace:
                if log.reason is None:
                    continue
                if self._passes(log.reason, info.code):
                    return self._run_this_once(info, log.reason)
                CompileContext.get().attempt += 1
                self._take_break(log, info.code)
        raise RuntimeError(f"tracing does not settle after {MAX_RESTARTS} attempts; last: {log.reason}")

    def _take_break(self, log: SpeculationLog, code: CodeType) -> None:
        """Record the break found by an attempt; raises BreakNotAllowed where breaks are errors."""
        assert log.reason is not None
        drop_tracebacks(log.reason, log.outside)
        if self.fullgraph or log.is_error:
            raise BreakNotAllowed(log.reason, ERROR_ON_BREAK if log.is_error else FULLGRAPH) from log.reason
        self._note_callee(log.reason, code)

    def _attempt(self, info: FrameInfo, log: SpeculationLog) -> Answer:
        frame = outermost_frame(info, log, self._callees, self.histories.of(info.code))
        reported: GraphBreak | None = None
        try:
            with located(frame.state.location):
                ending = run_outermost(frame, log)
                if ending.is_new:
                    if log.reason is not None and self._passes(log.reason, info.code):
                        return self._run_this_once(info, log.reason)
                    self._take_break(log, info.code)
                if ending.reason is not None:
                    reported = ending.reason
                    self._report_break(info, reported)
                return self._finish(info, frame, ending)
        except EscapedException as escaped:
            drop_tracebacks(escaped, log.outside)
            return self._raises(info, escaped)
        except GraphBreak as broken:
            drop_tracebacks(broken, log.outside)
            return self._skip(info, broken, reported=broken is reported)
        except NotMadeHere as error:
            assert isinstance(error.maker, KnownValue)
            log.called_for_real.add(id(error.maker.obj))
            raise RestartTrace from error
        except (NotImplementedError, CannotLoad) as error:
            return self._skip(info, cannot_rebuild(error))
        finally:
            frame.state.finished()
            release(frame)

    def _skip(self, info: FrameInfo, broken: GraphBreak, *, reported: bool = False) -> Answer:
        """Skip the frame's code from now on; functions it calls are still compiled."""
        if self.fullgraph:
            raise BreakNotAllowed(broken) from broken
        if not reported:
            self._report_break(info, broken)
        self._report("skip", info.code, str(broken), location=broken.user_location)
        return SKIP(str(broken))

    def _report_break(self, info: FrameInfo, broken: GraphBreak) -> None:
        self._report("break", info.code, str(broken), broken=broken, location=broken.user_location)

    def _passes(self, broken: GraphBreak, code: CodeType) -> bool:
        """Whether the call runs eagerly as a whole for a break of its own: so often, the next one may be compiled."""
        return broken.kind.passing and not self.fullgraph and self._times_raised(code) <= MAX_RAISED

    def _run_this_once(self, info: FrameInfo, broken: GraphBreak) -> Answer:
        self._report_break(info, broken)
        return self._run_once(info.code, str(broken), quiet=True, recursive=True)

    def _times_raised(self, code: CodeType) -> int:
        """Count one more attempt to trace the code that has ended in an exception of the program."""
        self._raised[code] = times = self._raised.get(code, 0) + 1
        return times

    def _raises(self, info: FrameInfo, escaped: EscapedException) -> Answer:
        """Run this call eagerly; skip the code once tracing has ended in exceptions MAX_RAISED times."""
        why = str(escaped)
        if self._times_raised(info.code) <= MAX_RAISED or self.fullgraph:
            self._report("run-once", info.code, why, location=location_of(escaped))
            unforeseen = NotRaised(f"tracing found an exception that the program did not raise: {why}")
            # held strongly during the call: the program may reset its compiler meanwhile
            returned = functools.partial(self.report_error, info.code, unforeseen)
            return RUN_ONCE(why, quiet=True, recursive=True, returned=returned)
        reason = f"tracing found an exception in {MAX_RAISED} calls; the last: {why}"
        self._report_costly(info.code, reason)
        self._report("skip", info.code, reason, location=location_of(escaped))
        return SKIP(reason)

    def _finish(self, info: FrameInfo, frame: Frame, ending: Ending) -> Answer:
        residual = Residual(frame)
        if ending.value is not None:
            residual.return_(ending.value)
        else:
            assert ending.reason is not None
            emit_break(residual, ending.reason)
        graphs: list[object] = []
        code = residual.finish(
            self._runner_of(info.code, graphs),
            complete=ending.value is not None,
            on_error=_error_reporter(self, info.code),
            fullgraph=self.fullgraph,
        )
        if not graphs:
            if (
                not self.fullgraph
                and sum(entry.code in self._graphless for entry in compiled_entries(info.code)) >= MAX_GRAPHLESS
            ):
                self._report_costly(info.code, NOTHING_TO_COMPILE)
                self._report("skip", info.code, NOTHING_TO_COMPILE)
                return SKIP(NOTHING_TO_COMPILE)
            self._graphless.add(code)
        self._check_marks(frame.state.symbols)
        for change in self.histories.of(info.code).take_newly_dynamic():
            self._report("dynamic", info.code, change)
        guards = frame.state.guards
        with located(None):  # guards that concern the whole frame
            for source, kind in frame.state.facts.unread_strings.items():
                frame.guard(source, "TYPE_MATCH", kind)
            guards.update(
                state_guards(), global_state_guards(), alias_guards(frame.state), frame.state.symbols.guards()
            )
        names = frame.code.argument_names
        program = compile_guards(guards, names, info.code.co_freevars, inputs=residual.inputs)
        function = cast(FunctionType, info.function)
        if not program(info.arguments, function):
            raise _refusal(program, info, frame.state.symbols)
        seconds = time.perf_counter() - CompileContext.get().begun
        facts = frame.state.symbols.facts()
        self._report("entry", info.code, check=program, symbols=facts, residual=code, seconds=seconds)
        eager = None if graphs else str(ending.reason or "")
        entry = Entry(program, code, complete=ending.value is not None, inputs=bool(residual.inputs), eager=eager)
        hide_from_torch_compile(entry)
        return entry

    def _check_marks(self, symbols: Symbols) -> None:
        violated = symbols.violated()
        if violated is not None:
            text, location = violated
            raise MarkViolated(f"{text}{_at_location(location)}; {INSTEAD_OF_A_MARK}")

    def _runner_of(self, code: CodeType, graphs: list[object]) -> RunnerOf:
        def runner_of(graph: FinishedGraph, sharing: Sharing | None) -> Runner:
            traced = graph if sharing is None or not sharing.bases else over_memory(graph, sharing)
            graphs.append(traced.module)
            size = f"{len(traced.module.graph.nodes)} nodes"
            self._report("graph", code, size, graph=traced.module, location=graph.location)
            if sharing is not None and not sharing.bases:
                return self._run_in_order(code, graph, f"{IN_ORDER}, and {sharing.why_not}")
            runner = Runner.of(self.compile_graph(traced.module, traced.inputs))
            for refusal in runner.refusals:
                self._report("refusal", code, refusal, location=graph.location)
            return runner if sharing is None else running_over_memory(runner, graph, sharing)

        return runner_of

    def _run_in_order(self, code: CodeType, graph: FinishedGraph, why: str) -> Runner:
        """Return a callable that runs a graph operation by operation, as it was traced."""
        if self.fullgraph:
            raise EagerNotAllowed(code.co_qualname, why)
        self._report("in-order", code, why, location=graph.location)
        return Runner(graph.module.forward)


def compiled_entries(code: CodeType) -> list[Entry]:
    """Return the entries of a code object but those that run it as it is."""
    return [entry for entry in entries(code) if entry.code is not code]


def _applies(entry: Entry, info: FrameInfo) -> bool:
    check = entry.check
    return callable(check) and bool(check(info.arguments, cast(FunctionType, info.function)))


def _refusal(program: CheckProgram, info: FrameInfo, symbols: Symbols) -> Exception:
    """Return the error for guards that reject the call they were made for: MarkViolated if a size is marked unbacked.

    torch assumes without a check that such a size broadcasts to nothing; this call may violate that.
    """
    verdicts = program.verdicts(info.arguments, cast(FunctionType, info.function))
    for guard, reason, _ in verdicts:
        marked = next((source for source in guard.operands if source in symbols.undecided), None)
        if reason is not None and marked is not None:
            where = symbols.decided_at(marked) or guard.location
            text = f"{marked.name} is marked unbacked, and something is decided by it: {reason}"
            return MarkViolated(f"{text}{_at_location(where)}; {INSTEAD_OF_A_MARK}")
    why = program.explain(info.arguments, cast(FunctionType, info.function))
    return GuardsRefused(f"the guards refuse the call they were made for: {why}")


def _used_at(guard: Guard | None) -> Location | None:
    """Return the location in the user's program that relies on the guard."""
    return None if guard is None else guard.location


def _subject(guard: Guard | None) -> str:
    """Return the subject of the guard, in the user's terms."""
    return "what an entry holds on to" if guard is None else guard.subject


def _at_location(location: Location | None) -> str:
    """Return a location as a suffix of a message."""
    return "" if location is None else f" ({location.in_user_code})"


def _remedy(guard: Guard | None) -> str:
    """Return the remedy for many entries that differ in this guard."""
    return WHAT_TO_DO_FOR_SYMBOLS if guard is not None and guard.kind.name == "SHAPE" else WHAT_TO_DO


def _error_reporter(converter: FrameConverter, code: CodeType) -> Callable[[Exception], None]:
    """Return the error reporter of residual code. It hangs on `code`, so it holds only weak references."""
    converter_alive, code_alive = weakref.ref(converter), weakref.ref(code)

    def report(error: Exception) -> None:
        owner, original = converter_alive(), code_alive()
        if owner is not None and original is not None:
            owner.report_graph_error(original, error)

    return report


def release(frame: Frame) -> None:
    """Drop the user's objects: a trace is full of reference cycles, which would keep them alive for long."""
    frame.locals.clear()
    frame.locals = {}
    frame.stack.clear()
    frame.operands = ()
    frame.result = frame.handled = None
    frame.cells.clear()
    frame.state.release()
