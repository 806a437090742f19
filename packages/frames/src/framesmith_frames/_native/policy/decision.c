#include "policy/decision.h"

#include "policy/interest_filter.h"

PyObject *error_handler = NULL;

int find_entry(Cache *cache, PyObject *const *args, Py_ssize_t nargs, PyObject *function, Activation *activation,
               Found *found)
{
    PyObject *entries = cache->entries;
    if (entries == NULL) {
        return 0;
    }
    Py_INCREF(entries);
    activation->busy++;
    int status = 0;
    Entry *entry = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && status == 0; i++) {
        entry = (Entry *)PyTuple_GET_ITEM(entries, i);
        status = entry_check(entry, args, nargs, function, &found->inputs);
    }
    activation->busy--;
    if (status > 0) {
        entry->hits++;
        cache->hits++;
        found->entry = (Entry *)Py_NewRef((PyObject *)entry);
        cache_use(cache, (PyObject *)entry, entries);
    }
    Py_DECREF(entries);
    return status;
}

/* ---- errors ---- */

static void report_unraisable(PyObject *exception, PyObject *function)
{
    PyErr_SetRaisedException(Py_NewRef(exception));
    PyErr_WriteUnraisable(function);
}

static int mark_residual(Entry *entry, PyCodeObject *original)
{
    if (entry->code == (PyObject *)original) {
        return 0;
    }
    CodeState *state = code_state_get((PyCodeObject *)entry->code);
    CodeState *flat = entry->flat_code == NULL ? NULL : code_state_find((PyCodeObject *)entry->flat_code);
    PyObject *reason = PyUnicode_FromFormat("residual code of %U", original->co_qualname);
    if (state != NULL && reason != NULL) {
        code_state_mark(state, MARKED_RESIDUAL, reason);
    }
    if (flat != NULL && reason != NULL) {
        code_state_mark(flat, MARKED_RESIDUAL, reason);
    }
    Py_XDECREF(reason);
    return state == NULL || reason == NULL ? -1 : 0;
}

/* The handler's answer. 1: *found is an entry to run, once and unchecked; 0: run the frame eagerly; -1: an exception. */
static int take_instead(PyObject *answer, PyCodeObject *code, Found *found)
{
    if (!Py_IS_TYPE(answer, &Entry_Type)) {
        return 0;
    }
    Entry *entry = (Entry *)answer;
    if (entry->inputs) {
        PyErr_SetString(PyExc_TypeError, "an error handler's Entry takes no inputs: no check of it runs that would find them");
        return -1;
    }
    if (entry_fits(entry, code) < 0 || mark_residual(entry, code) < 0) {
        return -1;
    }
    found->entry = (Entry *)Py_NewRef(answer);
    found->inputs = NULL;
    return 1;
}

/* The caller gets the exception that the handler raises and, without a handler, KeyboardInterrupt and SystemExit.
 *
 * A report runs Python code: the handler, `sys.unraisablehook`, methods of streams, decoders of source lines, destructors of
 * objects in the traceback. The hook is off in all of it: the callback that failed would fail again, without end. */
int report_error(const Call *call, Activation *activation, Found *found)
{
    activation->busy++;
    PyObject *exception = PyErr_GetRaisedException();
    PyObject *handler = Py_XNewRef(error_handler);
    int status = 0;
    if (handler == NULL) {
        if (PyErr_GivenExceptionMatches(exception, PyExc_Exception)) {
            report_unraisable(exception, call->function);
        }
        else {
            PyErr_SetRaisedException(Py_NewRef(exception));
            status = -1;
        }
    }
    else {
        PyObject *info = frame_info_new(call, activation->cache_id);
        PyObject *answer = NULL;
        if (info != NULL) {
            PyObject *arguments[] = {exception, info};
            answer = PyObject_Vectorcall(handler, arguments, 2, NULL);
        }
        status = answer == NULL ? -1 : take_instead(answer, call->code, found);
        Py_XDECREF(answer);
        Py_XDECREF(info);
    }
    Py_XDECREF(handler);
    Py_DECREF(exception);
    activation->busy--;
    return status;
}

/* ---- asking ---- */

static PyObject *call_back(const Call *call, Activation *activation)
{
    PyObject *callback = Py_NewRef(activation->callback); /* making the info may collect garbage: a finalizer may set another */
    PyObject *info = frame_info_new(call, activation->cache_id);
    if (info == NULL) {
        Py_DECREF(callback);
        return NULL;
    }
    activation->busy++;
    PyObject *answer = PyObject_CallOneArg(callback, info);
    activation->busy--;
    Py_DECREF(callback);
    Py_DECREF(info);
    return answer;
}

/* 1: run the entry; 0: it does not apply; -1: an exception. After a reset meanwhile, the entry is used for this call only. */
static int take_entry(const Call *call, Cache *cache, Activation *activation, Entry *entry, Found *found)
{
    PyCodeObject *code = call->code;
    if (entry_fits(entry, code) < 0 || mark_residual(entry, code) < 0 || cache_add(cache, (PyObject *)entry) < 0) {
        return -1;
    }
    activation->busy++;
    int status = entry_check(entry, call->args, code_argument_count(code), call->function, &found->inputs);
    activation->busy--;
    cache->rejected += status == 0;
    found->entry = (Entry *)(status > 0 ? Py_NewRef((PyObject *)entry) : NULL);
    return status;
}

static void take_refusal(Cache *cache, Answer *answer)
{
    int skips = Py_IS_TYPE(answer, &Skip_Type);
    cache->skip = !skips ? NOT_SKIPPED : answer->recursive ? SKIPPED_RECURSIVELY : SKIPPED;
    cache->run_once += !skips;
    cache->quiet = answer->quiet;
    Py_XSETREF(cache->reason, Py_NewRef(answer->reason));
}

PyObject *reason_text(const char *text)
{
    PyObject *reason = PyUnicode_FromString(text);
    if (reason == NULL) {
        PyErr_Clear();
    }
    return reason;
}

static PyObject *reason_to_report(const Cache *cache) { return cache->quiet ? NULL : Py_XNewRef(cache->reason); }

static int ask(const Call *call, Cache *cache, Activation *activation, Found *found, PyObject **reason)
{
    PyObject *answer = call_back(call, activation);
    if (answer == NULL) {
        return -1;
    }
    int status = 0;
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        status = take_entry(call, cache, activation, (Entry *)answer, found);
        *reason = status == 0 ? reason_text("a new entry does not apply to the call it was made for") : NULL;
    }
    else if (Py_IS_TYPE(answer, &Skip_Type) || Py_IS_TYPE(answer, &RunOnce_Type)) {
        take_refusal(cache, (Answer *)answer);
        *reason = reason_to_report(cache);
        found->returned = Py_XNewRef(((Answer *)answer)->returned);
        found->with_calls = ((Answer *)answer)->recursive;
    }
    else {
        PyErr_Format(PyExc_TypeError, "a frame callback must return Entry, SKIP or RUN_ONCE, not %.200s",
                     Py_TYPE(answer)->tp_name);
        status = -1;
    }
    Py_DECREF(answer);
    return status;
}

int decide(const Call *call, Cache *cache, Activation *activation, Found *found, PyObject **reason)
{
    cache->users++;
    int status = find_entry(cache, call->args, code_argument_count(call->code), call->function, activation, found);
    activation->found += status > 0;
    if (status == 0 && cache->skip) {
        cache->skips++; /* entries made before the SKIP are still used */
        *reason = reason_to_report(cache);
    }
    else if (status == 0 && cache->entries != NULL &&
             filter_call(cache, call) != OFFERED) {
        cache->misses++; /* of the entries, made for other arguments */
    }
    else if (status == 0) {
        activation->found++;
        cache->misses++;
        status = activation->callback == NULL || Py_IsFinalizing() ? 0 : ask(call, cache, activation, found, reason);
    }
    cache->errors += status < 0;
    cache_release(cache);
    return status;
}
