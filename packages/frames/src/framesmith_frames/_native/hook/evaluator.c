/* The hook is installed while any thread is active, and chained to the evaluator that was there before.
 *
 * Note [Nesting with other hooks]: other hooks (torch.compile's) may be installed above or below ours and come and go in any
 * order. If one is above ours when the last thread becomes inactive, ours stays and passes every frame on; the first frame
 * that finds ours on top again, with no thread active, takes it off. If each ends up below the other, a frame that reaches
 * ours twice goes to CPython's own evaluator.
 *
 * Note [C stack]: with any hook installed, every Python call nests an evaluator on the C stack, so a recursion that CPython
 * runs on its heap could exhaust it. Once half of a thread's C stack is used, the frame at that depth runs with the hook taken
 * off, and so do the calls below it, until that frame returns. */

#include "hook/evaluator.h" /* first: Python.h asks the C library for GNU's functions */

#include <pthread.h>

static _PyFrameEvalFunction hook = NULL; /* ours */
static int suspended = 0;                /* frames that run with the hook off, see Note [C stack] */

_PyFrameEvalFunction evaluator_below = NULL;

static _PyFrameEvalFunction installed_evaluator(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

static void set_evaluator(_PyFrameEvalFunction evaluator)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluator);
}

static void install(void)
{
    _PyFrameEvalFunction current = installed_evaluator();
    if (current == hook || suspended) {
        return;
    }
    if (evaluator_below != NULL && current != _PyEval_EvalFrameDefault) {
        return; /* another hook is above ours and passes its frames on */
    }
    evaluator_below = current;
    set_evaluator(hook);
}

void hook_uninstall(void)
{
    if (evaluator_below != NULL && installed_evaluator() == hook) {
        set_evaluator(evaluator_below);
        evaluator_below = NULL;
    }
}

void evaluator_init(_PyFrameEvalFunction own)
{
    hook = own;
    activation_init(install, hook_uninstall);
}

int hook_is_suspended(void) { return suspended > 0; }

PyObject *hook_state(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("{s:N,s:N,s:n,s:i}", "linked", PyBool_FromLong(evaluator_below != NULL), "on_top",
                         PyBool_FromLong(installed_evaluator() == hook), "active_threads", active_threads, "suspended",
                         suspended);
}

/* ---- the C stack ---- */

#define NO_FLOOR 1

static uintptr_t find_stack_floor(void)
{
#if defined(__APPLE__)
    pthread_t self = pthread_self();
    size_t size = pthread_get_stacksize_np(self);
    return (uintptr_t)pthread_get_stackaddr_np(self) - size / 2;
#elif defined(__GLIBC__)
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) {
        return NO_FLOOR;
    }
    void *lowest = NULL;
    size_t size = 0;
    int status = pthread_attr_getstack(&attributes, &lowest, &size);
    pthread_attr_destroy(&attributes);
    return status == 0 ? (uintptr_t)lowest + size / 2 : NO_FLOOR;
#else
    return NO_FLOOR;
#endif
}

static int stack_is_low(Local *local)
{
    if (local->stack_floor == NO_FLOOR_YET) {
        local->stack_floor = find_stack_floor();
    }
    return (uintptr_t)__builtin_frame_address(0) < local->stack_floor;
}

static PyObject *evaluate_unhooked(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (installed_evaluator() != hook) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    suspended++;
    set_evaluator(_PyEval_EvalFrameDefault);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    suspended--;
    if (suspended == 0) {
        evaluator_below = NULL;
        if (active_threads > 0) {
            install();
        }
    }
    return result;
}

/* ---- evaluation ---- */

PyObject *evaluate_unusually(PyThreadState *tstate, Frame *frame, int throwflag, Local *local)
{
    if (evaluator_below == NULL || evaluator_below == _PyEval_EvalFrameDefault) {
        if (stack_is_low(local)) {
            return evaluate_unhooked(tstate, frame, throwflag);
        }
        GIVE_BACK_RECURSION(tstate);
        PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
        TAKE_RECURSION(tstate);
        return result;
    }
    if (local->passing == frame) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag); /* the other hook is both below and above ours */
    }
    Frame *outer = local->passing;
    local->passing = frame;
    PyObject *result = evaluator_below(tstate, frame, throwflag);
    local->passing = outer;
    return result;
}

PyObject *evaluate_paused(PyThreadState *tstate, Frame *frame, Local *local)
{
    Activation *activation = local->activation;
    activation->paused++;
    PyObject *result = evaluate(tstate, frame, 0, local);
    activation->paused--;
    return result;
}

/* With the evaluator off, Python's calls nest in one evaluator again. The evaluator belongs to the interpreter, so it is taken
 * off only while no other thread needs the hook. Setting a callback meanwhile installs it again. */
PyObject *evaluate_unwatched(PyThreadState *tstate, Frame *frame, Local *local)
{
    Activation *activation = local->activation;
    int is_taken_off = active_threads == 1 && evaluator_below == _PyEval_EvalFrameDefault && installed_evaluator() == hook;
    int outer = activation->unwatched;
    activation->unwatched = 1;
    if (is_taken_off) {
        set_evaluator(_PyEval_EvalFrameDefault);
    }
    PyObject *result = evaluate(tstate, frame, 0, local);
    activation->unwatched = outer;
    if (is_taken_off) {
        if (active_threads > 0) {
            install();
        }
        else if (installed_evaluator() == _PyEval_EvalFrameDefault) {
            evaluator_below = NULL;
        }
    }
    return result;
}
