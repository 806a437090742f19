/* The PEP 523 hook, or frame evaluator: which function calls are dispatched, and how the others are evaluated. */

#include "hook/hook.h"

#include "data/activation.h"
#include "data/code_state.h"
#include "data/records.h"
#include "hook/dispatch.h"
#include "hook/evaluator.h"
#include "hook/replace.h"
#include "policy/eager_calls.h"
#include "policy/interest_filter.h"

/* A filtered call, with the hook on in the functions that it calls: counts whether anything is found among them. */
static PyObject *evaluate_watched(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local)
{
    unsigned long long seen = local->activation->seen, found = local->activation->found;
    cache->users++;
    PyObject *code = Py_NewRef(frame_code(frame)); /* it owns the cache, and from 3.12 on the evaluator releases it */
    PyObject *result = evaluate(tstate, frame, 0, local);
    Activation *activation = local->activation;
    cache->calls_inside |= activation->seen != seen;
    cache->uninteresting_calls = activation->found == found ? cache->uninteresting_calls + 1 : 0;
    cache_release(cache);
    Py_DECREF(code);
    return result;
}

/* Runs the frame as it is, unless it is a compiled function's own and on_eager raises. */
static inline PyObject *evaluate_eagerly(PyThreadState *tstate, Frame *frame, PendingCall *pending, PyObject *reason, Local *local)
{
    if (pending != NULL && pending_call_runs_eagerly(pending, reason, local->activation) < 0) {
        return abandon_frame(tstate, frame);
    }
    return evaluate(tstate, frame, 0, local);
}

static inline PyObject *evaluate_skipped(PyThreadState *tstate, Frame *frame, Cache *cache, PendingCall *pending, Local *local)
{
    if (cache->skip == SKIPPED) {
        return evaluate_eagerly(tstate, frame, cache->quiet ? NULL : pending, cache->reason, local);
    }
    if (!cache->quiet && pending_call_runs_eagerly(pending, cache->reason, local->activation) < 0) {
        return abandon_frame(tstate, frame);
    }
    return evaluate_paused(tstate, frame, local);
}

/* A function's own frame before its first instruction: no class body, module, exec, generator or resumption. */
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

static PyObject *filter_and_dispatch(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local, PendingCall *pending)
{
    PyCodeObject *code = frame_code(frame);
    int count = code_argument_count(code);
    PyObject *room[ROOM_FOR_ARGUMENTS(count)];
    Call call = {code, frame_function(frame), frame_arguments(frame, room, count)};
    switch (cache->entries == NULL ? filter_call(cache, &call) : OFFERED) {
    case EAGER_LEAF:
        return evaluate(tstate, frame, 0, local);
    case EAGER_WATCHED:
        return evaluate_watched(tstate, frame, cache, local);
    case EAGER_UNWATCHED:
        return evaluate_unwatched(tstate, frame, local);
    default:
        return dispatch(tstate, frame, &call, cache, local, pending);
    }
}

static PyObject *hook(PyThreadState *tstate, Frame *frame, int throwflag)
{
    Local *local = local_state();
    Activation *activation = local->activation;
    if (activation == NULL || activation_is_off(activation)) {
        PyObject *result = evaluate(tstate, frame, throwflag, local);
        if (active_threads == 0) {
            hook_uninstall(); /* see Note [Nesting with other hooks] in evaluator.c */
        }
        return result;
    }
    /* While `tracing`, the thread runs a trace function or a monitoring callback: not part of the program. */
    if (throwflag || tstate->tracing || local->passing == frame || !is_function_call(frame)) {
        return evaluate(tstate, frame, throwflag, local);
    }
    activation->seen++;
    PendingCall *pending = activation->pending_call == NULL ? NULL : pending_call_seen(activation, frame_function(frame));
    CodeState *state = code_state_get(frame_code(frame));
    Cache *cache = NULL;
    if (state != NULL && state->mark != NOT_MARKED) {
        state->skips++;
        if (activation->pending_inputs != NULL) {
            inputs_arrived(activation, frame);
        }
        return evaluate_eagerly(tstate, frame, pending, state->mark_reason, local);
    }
    if (state == NULL || (cache = cache_get(state, activation->cache_id)) == NULL) {
        PyErr_Clear(); /* out of memory: the program itself may still run */
        return evaluate_eagerly(tstate, frame, pending, NULL, local);
    }
    if (activation->first || pending != NULL) {
        activation->first = 0;
        cache->interesting = 1;
    }
    if (cache->skip && cache->entries == NULL) {
        cache->skips++;
        return evaluate_skipped(tstate, frame, cache, pending, local);
    }
    return filter_and_dispatch(tstate, frame, cache, local, pending);
}

int hook_init(void)
{
    evaluator_init(hook);
    return replace_init();
}
