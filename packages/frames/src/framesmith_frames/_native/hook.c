/* The PEP 523 evaluator: installed on the interpreter while any thread is active, chained to what was there before.
 *
 * Note [Nesting with other hooks]: another hook (torch.compile's) may be installed above or below ours and come and go
 * in any order. If it sits above us when we leave, we stay and let every frame pass; the first frame that finds us on
 * top again with no thread active takes us off. If each ends up below the other, a frame that reaches us twice goes to
 * CPython's own evaluator.
 *
 * Note [C stack]: with any hook installed every Python call nests an evaluator on the C stack, so that a recursion which
 * CPython would run on its heap could exhaust it. Once half of a thread's C stack is used, the frame at that depth runs
 * with the hook taken off, and so do the calls below it, until that frame returns. */

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <pthread.h>

#include "native.h"

static PyObject *hook(PyThreadState *tstate, Frame *frame, int throwflag);

static _PyFrameEvalFunction below = NULL; /* the evaluator under ours; NULL: we are not in the chain */
static int suspended = 0;                 /* frames now running with the hook off, see Note [C stack] */

static _PyFrameEvalFunction installed_evaluator(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

static void set_evaluator(_PyFrameEvalFunction evaluator)
{
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluator);
}

void hook_install(void)
{
    _PyFrameEvalFunction current = installed_evaluator();
    if (current == hook || suspended) {
        return;
    }
    if (below != NULL && current != _PyEval_EvalFrameDefault) {
        return; /* another hook is above us and passes its frames on */
    }
    below = current;
    set_evaluator(hook);
}

void hook_uninstall(void)
{
    if (below != NULL && installed_evaluator() == hook) {
        set_evaluator(below);
        below = NULL;
    }
}

int hook_is_suspended(void) { return suspended > 0; }

PyObject *hook_state(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("{s:N,s:N,s:n,s:i}", "linked", PyBool_FromLong(below != NULL), "on_top",
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
    if (local->stack_floor == 0) {
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
        below = NULL;
        if (active_threads > 0) {
            hook_install();
        }
    }
    return result;
}

/* ---- evaluation ---- */

PyObject *evaluate(PyThreadState *tstate, Frame *frame, int throwflag, Local *local)
{
    if (below == NULL || below == _PyEval_EvalFrameDefault) {
        if (stack_is_low(local)) {
            return evaluate_unhooked(tstate, frame, throwflag);
        }
        GIVE_BACK_RECURSION(tstate);
        PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
        TAKE_RECURSION(tstate);
        return result;
    }
    if (local->passing == frame) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag); /* below and above us at once */
    }
    Frame *outer = local->passing;
    local->passing = frame;
    PyObject *result = below(tstate, frame, throwflag);
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

/* A call left alone, with the hook on: counts whether anything inside was the callback's affair. */
static PyObject *evaluate_watched(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local)
{
    unsigned long long seen = local->activation->seen, found = local->activation->found;
    cache->users++;
    PyObject *code = Py_NewRef(frame_code(frame)); /* the cache goes with it, and from 3.12 on the evaluator lets go of it */
    PyObject *result = evaluate(tstate, frame, 0, local);
    Activation *activation = local->activation;
    cache->calls_inside |= activation->seen != seen;
    cache->quiet_calls = activation->found == found ? cache->quiet_calls + 1 : 0;
    cache_release(cache);
    Py_DECREF(code);
    return result;
}

/* A call left alone with all it calls. With the evaluator off, Python's calls nest in one evaluator again; that is the
 * interpreter's, so it is done only while no other thread needs the hook. A callback set meanwhile puts it back. */
static PyObject *evaluate_unwatched(PyThreadState *tstate, Frame *frame, Local *local)
{
    Activation *activation = local->activation;
    int aside = active_threads == 1 && below == _PyEval_EvalFrameDefault && installed_evaluator() == hook;
    int outer = activation->unwatched;
    activation->unwatched = 1;
    if (aside) {
        set_evaluator(_PyEval_EvalFrameDefault);
    }
    PyObject *result = evaluate(tstate, frame, 0, local);
    activation->unwatched = outer;
    if (aside) {
        if (active_threads > 0) {
            hook_install();
        }
        else if (installed_evaluator() == _PyEval_EvalFrameDefault) {
            below = NULL;
        }
    }
    return result;
}

/* A call left to CPython, unless it is a compiled function's own and that is refused. */
static PyObject *evaluate_eagerly(PyThreadState *tstate, Frame *frame, TargetCall *target, PyObject *reason, Local *local)
{
    if (target != NULL && target_runs_eagerly(target, reason, local->activation) < 0) {
        return abandon_frame(tstate, frame);
    }
    return evaluate(tstate, frame, 0, local);
}

static PyObject *evaluate_skipped(PyThreadState *tstate, Frame *frame, Cache *cache, TargetCall *target, Local *local)
{
    if (cache->skip == SKIPPED) {
        return evaluate_eagerly(tstate, frame, cache->quiet ? NULL : target, cache->reason, local);
    }
    if (!cache->quiet && target_runs_eagerly(target, cache->reason, local->activation) < 0) {
        return abandon_frame(tstate, frame);
    }
    return evaluate_paused(tstate, frame, local);
}

/* Only a function's own frame, before its first instruction: no class body, module, exec, generator or resumption. */
static int is_function_call(Frame *frame)
{
    if (frame->owner != FRAME_OWNED_BY_THREAD || frame->f_locals != NULL || !PyCode_Check((PyObject *)frame_code(frame))) {
        return 0;
    }
    int flags = frame_code(frame)->co_flags;
    return (flags & (CO_OPTIMIZED | CO_NEWLOCALS)) == (CO_OPTIMIZED | CO_NEWLOCALS) &&
           (flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) == 0 && frame_is_fresh(frame) &&
           PyFunction_Check(frame_function(frame));
}

static PyObject *hook(PyThreadState *tstate, Frame *frame, int throwflag)
{
    Local *local = local_state();
    Activation *activation = local->activation;
    if (activation == NULL || activation_is_off(activation)) {
        PyObject *result = evaluate(tstate, frame, throwflag, local);
        if (active_threads == 0) {
            hook_uninstall(); /* left on top by a hook that has gone, see Note [Nesting with other hooks] */
        }
        return result;
    }
    /* While `tracing`, this thread runs a trace function or a monitoring callback: not part of the program. */
    if (throwflag || tstate->tracing || local->passing == frame || !is_function_call(frame)) {
        return evaluate(tstate, frame, throwflag, local);
    }
    activation->seen++;
    TargetCall *target = activation->target == NULL ? NULL : target_arrived(activation, frame_function(frame));
    CodeState *state = code_state_get(frame_code(frame));
    Cache *cache = NULL;
    if (state != NULL && state->mark != NOT_MARKED) {
        state->skips++;
        if (activation->handed != NULL) {
            inputs_arrived(activation, frame);
        }
        return evaluate_eagerly(tstate, frame, target, state->mark_reason, local);
    }
    if (state == NULL || (cache = cache_get(state, activation->cache)) == NULL) {
        PyErr_Clear(); /* out of memory: the program itself may still get by */
        return evaluate_eagerly(tstate, frame, target, NULL, local);
    }
    if (activation->first || target != NULL) {
        activation->first = 0;
        cache->interesting = 1;
    }
    if (cache->skip && cache->entries == NULL) {
        cache->skips++;
        return evaluate_skipped(tstate, frame, cache, target, local);
    }
    if (cache->entries == NULL) {
        switch (filter_call(cache, frame_code(frame), frame_function(frame), frame->localsplus)) {
        case EAGER_LEAF:
            return evaluate(tstate, frame, throwflag, local);
        case EAGER_WATCHED:
            return evaluate_watched(tstate, frame, cache, local);
        case EAGER_UNWATCHED:
            return evaluate_unwatched(tstate, frame, local);
        default:
            break;
        }
    }
    return dispatch(tstate, frame, cache, local, target);
}
