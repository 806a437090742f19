"""Errors of callbacks and checkers: reported, and the call runs eagerly, once, with its arguments."""

import subprocess
import sys
import textwrap

import pytest

import framesmith_frames as frames


class Log:
    """An error handler that records and returns."""

    def __init__(self):
        self.seen = []
        frames.set_error_handler(self)

    def __call__(self, error, frame):
        self.seen.append((type(error), str(error), frame.code.co_name, frame.arguments))


def appending(values, *rest):
    values.append(rest)
    return len(values)


def fails(frame):
    if frame.code is appending.__code__:
        raise ZeroDivisionError("planted")
    return frames.SKIP("other")


def test_a_failing_callback_leaves_the_eager_call():
    log = Log()
    values = []
    with frames.activated(fails):
        assert appending(values, 1, 2) == 1
        assert appending(values) == 2
    assert values == [(1, 2), ()]
    assert log.seen[0] == (ZeroDivisionError, "planted", "appending", (values, (1, 2)))
    assert frames.stats(appending).errors == 2


def test_a_failing_checker_leaves_the_eager_call(replacing):
    log = Log()
    values = []

    def check(args, function):
        raise KeyError("checker")

    with frames.activated(replacing({appending: appending}, check)):
        assert appending(values, 1) == 1
        assert appending(values, 2) == 2
    assert [entry[0] for entry in log.seen] == [KeyError, KeyError]
    assert values == [(1,), (2,)]


def test_a_failing_truth_value_of_a_check_is_an_error(replacing):
    log = Log()

    class Undecided:
        def __bool__(self):
            raise ValueError("ambiguous")

    with frames.activated(replacing({appending: appending}, lambda args, function: Undecided())):
        assert appending([]) == 1
    assert log.seen[0][:2] == (ValueError, "ambiguous")


def test_without_a_handler_the_error_is_unraisable(monkeypatch):
    frames.set_error_handler(None)
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append((info.exc_type, info.object)))
    with frames.activated(fails):
        assert appending([]) == 1
    assert reported == [(ZeroDivisionError, appending)]


#: Code that runs while an error is reported, and the number of reports.
REPORTING = {
    "the source lines of a traceback": ("pass", 2),
    "a stream written in Python": (
        """
        class Stream:
            def __init__(self, stream):
                self.stream = stream
            def write(self, text):
                return self.pass_on(text)
            def pass_on(self, text):
                return self.stream.write(text)
            def flush(self):
                pass
        sys.stderr = Stream(sys.stderr)
        """,
        2,
    ),
    "a hook written in Python": (
        """
        def shown(info):
            traceback.print_exception(info.exc_type, info.exc_value, info.exc_traceback)
        sys.unraisablehook = lambda info: shown(info)
        """,
        2,
    ),
    "a hook that fails": (
        """
        def hook(info):
            raise LookupError(double(1))
        sys.unraisablehook = hook
        """,
        0,
    ),
    "a hook that calls what is compiled": (
        """
        other = frames.CompiledFunction(double, callback)
        def hook(info):
            other(1)
            print("ValueError: planted", file=sys.stderr)
        sys.unraisablehook = hook
        """,
        2,
    ),
    "an error with a message of its own": (
        """
        class Spoken(ValueError):
            def __str__(self):
                return "planted" * double(1)
        def callback(frame):
            raise Spoken
        """,
        2,
    ),
    "a destructor": (
        """
        class Held:
            def __del__(self):
                double(1)
        def callback(frame):
            held = Held()
            raise ValueError("planted")
        """,
        2,
    ),
    "the end of the interpreter": ("atexit.register(double, 1)\nframes.set_callback(callback)", 2),
}


@pytest.mark.parametrize("what", REPORTING)
def test_calls_inside_a_report_are_not_offered(what):
    prepare, times = REPORTING[what]
    program = f"""
import atexit, sys, traceback
import framesmith_frames as frames
def callback(frame):
    raise ValueError("planted")
def double(x):
    return x * 2
def program(x):
    return double(x) + 1
{textwrap.dedent(prepare)}
with frames.activated(callback):
    print(program(3))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "7\n"
    assert len(run.stderr) < 20_000
    assert run.stderr.count("planted\n") + run.stderr.count("plantedplanted\n") >= times


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_callback_reaches_the_caller(interrupt):
    frames.set_error_handler(None)
    values = []

    def callback(frame):
        if frame.code is appending.__code__:
            raise interrupt
        return frames.SKIP("other")

    with frames.activated(callback):
        with pytest.raises(interrupt):
            appending(values)
    assert values == []
    assert appending(values) == 1


def test_exceptions_of_the_handler_reach_the_caller():
    class Strict(Exception):
        pass

    def handler(error, frame):
        raise Strict from error

    frames.set_error_handler(handler)
    values = []
    with frames.activated(fails):
        for _ in range(3):
            with pytest.raises(Strict) as caught:
                appending(values)
    assert values == []
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.usefixtures("either_way")
def test_an_entry_of_the_handler_runs_once_and_unchecked():
    def instead(values, *rest):
        raise LookupError(len(rest))

    def never(args, function):
        raise AssertionError("checked")

    frames.set_error_handler(lambda error, frame: frames.Entry(never, instead.__code__))
    values = []
    with frames.activated(fails):
        for _ in range(2):
            with pytest.raises(LookupError, match="3"):
                appending(values, 1, 2, 3)
        assert frames.entries(appending) == [] and frames.stats(appending).errors == 2
    assert values == []
    assert frames.skip_reason(instead) == "residual code of appending"


def test_an_entry_of_the_handler_takes_no_inputs_and_fits_the_call():
    class Inputs:
        def extract(self, args, function):
            return args

    def with_inputs(values, *rest):
        found = rest
        return found

    answers = [
        frames.Entry(Inputs(), with_inputs.__code__, inputs=True),
        frames.Entry(lambda args, function: True, (lambda values: values).__code__),
    ]
    frames.set_error_handler(lambda error, frame: answers.pop(0))
    with frames.activated(fails):
        with pytest.raises(TypeError, match="takes no inputs"):
            appending([])
        with pytest.raises(ValueError):
            appending([])


def test_the_error_of_a_strict_handler_can_be_handled_by_the_program():
    def handler(error, frame):
        raise error

    frames.set_error_handler(handler)

    def program():
        try:
            return appending([])
        except ZeroDivisionError:
            return "handled"

    with frames.activated(lambda f: fails(f)):
        assert [program() for _ in range(2)] == ["handled"] * 2


def test_any_other_answer_is_an_error():
    log = Log()
    with frames.activated(lambda frame: None):
        assert appending([]) == 1
    assert log.seen[0][:2] == (TypeError, "a frame callback must return Entry, SKIP or RUN_ONCE, not NoneType")


def two(a, b):
    return a + b


def make_bad_codes():
    outer = 1

    def closure(a, b):
        return outer

    return {
        "3 positional": lambda a, b, c: 0,
        "1 keyword-only": lambda a, *, b: 0,
        "flags 4": lambda a, b, *c: 0,
        "flags 8": lambda a, b, **c: 0,
        "free variables ('outer',)": closure,
    }


@pytest.mark.parametrize("difference", list(make_bad_codes()))
def test_code_of_another_shape_is_refused(difference, replacing):
    log = Log()
    with frames.activated(replacing({two: make_bad_codes()[difference]})):
        assert two(1, 2) == 3
    assert log.seen[0][0] is ValueError
    assert difference in log.seen[0][1]
    assert frames.entries(two) == []


def generator():
    yield


async def coroutine():
    return


@pytest.mark.parametrize("function", [generator, coroutine])
def test_generator_code_is_refused_at_construction(function):
    with pytest.raises(ValueError, match="generator's or a coroutine's"):
        frames.Entry(two, function.__code__)


def test_module_code_and_bad_checks_are_refused_at_construction():
    with pytest.raises(ValueError, match="not a function's"):
        frames.Entry(two, compile("x = 1", "module", "exec"))
    with pytest.raises(TypeError, match="check must be callable"):
        frames.Entry(3, two.__code__)
    with pytest.raises(TypeError):
        frames.Entry(two, two)
    with pytest.raises(TypeError):
        frames.SKIP(3)


class WrongCapsule:
    __framesmith_check__ = 7


def test_a_wrong_capsule_is_refused_at_construction():
    with pytest.raises(ValueError, match=r'must be a capsule named "framesmith.check.v1" with version 1'):
        frames.Entry(WrongCapsule(), two.__code__)


@pytest.mark.parametrize("setter", [frames.set_callback, frames.set_error_handler])
def test_values_that_are_not_callable_are_refused(setter):
    with pytest.raises(TypeError, match="expected a callable or None, not int"):
        setter(3)


def test_activated_refuses_values_that_are_not_callable():
    with pytest.raises(TypeError, match="expected a callable or None, not int"):
        frames.activated(3)


def test_the_current_exception_is_not_disturbed(replacing):
    """A destructor or `except` block that runs replaced code keeps the exception being handled."""

    def replacement(values, *rest):
        try:
            raise KeyError
        except KeyError:
            return -1

    def program():
        try:
            raise ValueError("outer")
        except ValueError as error:
            appending([])
            assert sys.exc_info()[1] is error
            raise

    with frames.activated(replacing({appending: replacement})):
        with pytest.raises(ValueError, match="outer"):
            program()
