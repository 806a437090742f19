#include "hook/dispatch.h"

#include "data/activation.h"
#include "data/owner.h"
#include "hook/evaluator.h"
#include "hook/replace.h"
#include "policy/decision.h"
#include "policy/diversion.h"

static PyObject *run_found(PyThreadState *tstate, Frame *frame, const Call *call, Found *found, Local *local,
                           PendingCall *pending)
{
    PyObject *eager = found->entry->eager;
    local->activation->computed += eager == NULL;
    if (pending != NULL && eager != NULL && PyUnicode_GET_LENGTH(eager) > 0) {
        pending_call_computes_nothing(pending, eager);
    }
    PyObject *result = run_entry(tstate, frame, call, found, local);
    Py_DECREF(found->entry);
    return result;
}

/* Calls `returned` of a RUN_ONCE unless the call raised; it may raise itself. Takes `returned`. */
static PyObject *report_returned(PyObject *result, PyObject *returned, Activation *activation)
{
    if (result != NULL) {
        activation->busy++;
        PyObject *answer = PyObject_CallNoArgs(returned);
        activation->busy--;
        if (answer == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(answer);
    }
    Py_DECREF(returned);
    return result;
}

/* Takes a use of the cache, which the caller has counted. */
static PyObject *dispatch_undiverted(PyThreadState *tstate, Frame *frame, const Call *call, Cache *cache, Local *local,
                                     PendingCall *pending)
{
    Found found = {0};
    PyObject *reason = NULL;
    int status = decide(call, cache, local->activation, &found, &reason);
    int with_calls = found.with_calls || cache->skip == SKIPPED_RECURSIVELY;
    cache_release(cache);
    if (status < 0) {
        status = report_error(call, local->activation, &found);
        reason = status == 0 ? reason_text("a callback or a check failed") : NULL;
    }
    if (status > 0) {
        return run_found(tstate, frame, call, &found, local, pending);
    }
    if (status == 0 && reason != NULL) {
        status = pending_call_runs_eagerly(pending, reason, local->activation);
    }
    Py_XDECREF(reason);
    if (status < 0) {
        Py_XDECREF(found.returned);
        return abandon_frame(tstate, frame);
    }
    PyObject *result = with_calls ? evaluate_paused(tstate, frame, local) : evaluate(tstate, frame, 0, local);
    return found.returned == NULL ? result : report_returned(result, found.returned, local->activation);
}

/* Like call_diverted() in compiled_function.c. Takes the callback. */
static PyObject *dispatch_diverted(PyThreadState *tstate, Frame *frame, const Call *call, PyObject *callback, Local *local)
{
    if (callback == NULL) {
        return evaluate_paused(tstate, frame, local);
    }
    PyObject *result = NULL;
    unsigned long long id;
    CodeState *state = code_state_find(call->code);
    Cache *cache = state == NULL || callback_cache(callback, &id) < 0 ? NULL : cache_get(state, id);
    if (cache == NULL) {
        PyErr_Clear(); /* out of memory: the program itself may still run */
        result = evaluate(tstate, frame, 0, local);
    }
    else {
        Outer outer = activation_enter(local->activation, callback, id);
        local->activation->first = 0;
        cache->users++;
        result = dispatch_undiverted(tstate, frame, call, cache, local, NULL);
        activation_leave(local->activation, outer);
    }
    Py_DECREF(callback);
    return result;
}

PyObject *dispatch(PyThreadState *tstate, Frame *frame, const Call *call, Cache *cache, Local *local, PendingCall *pending)
{
    if (!may_be_diverted()) {
        cache->users++;
        return dispatch_undiverted(tstate, frame, call, cache, local, pending);
    }
    PyObject *instead;
    Activation *activation = local->activation;
    cache->users++; /* Python code runs below: a reset would free the cache */
    PyObject *callback = Py_NewRef(activation->callback);
    int status = divert(callback, call->function, activation, &instead);
    Py_DECREF(callback);
    if (status != 0) {
        cache_release(cache);
    }
    if (status < 0) {
        return abandon_frame(tstate, frame);
    }
    if (status > 0) {
        return dispatch_diverted(tstate, frame, call, instead, local);
    }
    return dispatch_undiverted(tstate, frame, call, cache, local, pending);
}
