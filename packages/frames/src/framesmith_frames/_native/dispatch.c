/* Find the entry that applies to a call, or ask the thread's callback for one. */

#include "native.h"

static PyObject *error_handler = NULL;

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

/* What the handler answered. 1: an entry, *found is what to run, once and unchecked; 0: run the frame eagerly. */
static int take_instead(PyObject *answer, PyCodeObject *code, Found *found)
{
    if (!Py_IS_TYPE(answer, &Entry_Type)) {
        return 0;
    }
    Entry *entry = (Entry *)answer;
    if (entry->inputs) {
        PyErr_SetString(PyExc_TypeError, "an error handler's Entry takes no inputs: there is no check that finds them");
        return -1;
    }
    if (entry_fits(entry, code) < 0 || mark_residual(entry, code) < 0) {
        return -1;
    }
    found->entry = (Entry *)Py_NewRef(answer);
    found->inputs = NULL;
    return 1;
}

/* With an exception set. 1: reported, run *found; 0: reported, run the frame eagerly; -1: an exception is set, and meant
 * for the caller: what the handler raised, or an interrupt (KeyboardInterrupt, SystemExit) that nobody handles.
 *
 * A report runs Python code: the handler, the hook set in `sys`, a stream's methods, decoders of the source lines shown,
 * destructors of what the exception's traceback has kept. The callback that has just failed is not asked about that, or it
 * would fail again, and be reported, without end. */
static int report_error(Frame *frame, Activation *activation, Found *found)
{
    activation->busy++;
    PyObject *exception = PyErr_GetRaisedException();
    PyObject *function = frame_function(frame);
    PyCodeObject *code = frame_code(frame);
    PyObject *handler = Py_XNewRef(error_handler);
    int status = 0;
    if (handler == NULL) {
        if (PyErr_GivenExceptionMatches(exception, PyExc_Exception)) {
            report_unraisable(exception, function);
        }
        else {
            PyErr_SetRaisedException(Py_NewRef(exception));
            status = -1;
        }
    }
    else {
        PyObject *info = frame_info_new(function, code, frame->localsplus, activation->cache);
        PyObject *answer = NULL;
        if (info != NULL) {
            PyObject *call[] = {exception, info};
            answer = PyObject_Vectorcall(handler, call, 2, NULL);
        }
        status = answer == NULL ? -1 : take_instead(answer, code, found);
        Py_XDECREF(answer);
        Py_XDECREF(info);
    }
    Py_XDECREF(handler);
    Py_DECREF(exception);
    activation->busy--;
    return status;
}

/* ---- asking ---- */

static PyObject *call_back(Frame *frame, Activation *activation)
{
    PyObject *callback = Py_NewRef(activation->callback); /* making the info may collect garbage, and so set another one */
    PyObject *info = frame_info_new(frame_function(frame), frame_code(frame), frame->localsplus, activation->cache);
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

/* If somebody reset meanwhile, the cache has been dropped, and the entry is used for this call and not kept.
 * 1: run it; 0: it does not apply; -1: an exception is set. */
static int take_entry(Frame *frame, Cache *cache, Activation *activation, Entry *entry, Found *found)
{
    PyCodeObject *code = frame_code(frame);
    if (entry_fits(entry, code) < 0 || mark_residual(entry, code) < 0 || cache_add(cache, (PyObject *)entry) < 0) {
        return -1;
    }
    activation->busy++;
    int status = entry_check(entry, frame->localsplus, code_argument_count(code), frame_function(frame), &found->inputs);
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

/* Out of memory there is no reason to report, and no exception either. */
static PyObject *reason_text(const char *text)
{
    PyObject *reason = PyUnicode_FromString(text);
    if (reason == NULL) {
        PyErr_Clear();
    }
    return reason;
}

static PyObject *reason_to_report(const Cache *cache) { return cache->quiet ? NULL : Py_XNewRef(cache->reason); }

/* 1: *found is what to run; 0: run eagerly, *reason (strong) says why if that is to be reported; -1: an exception is set. */
static int ask(Frame *frame, Cache *cache, Activation *activation, Found *found, PyObject **reason)
{
    PyObject *answer = call_back(frame, activation);
    if (answer == NULL) {
        return -1;
    }
    int status = 0;
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        status = take_entry(frame, cache, activation, (Entry *)answer, found);
        *reason = status == 0 ? reason_text("a new entry does not apply to the call it was made for") : NULL;
    }
    else if (Py_IS_TYPE(answer, &Skip_Type) || Py_IS_TYPE(answer, &RunOnce_Type)) {
        take_refusal(cache, (Answer *)answer);
        *reason = reason_to_report(cache);
        found->returned = Py_XNewRef(((Answer *)answer)->returned);
    }
    else {
        PyErr_Format(PyExc_TypeError, "a frame callback must answer Entry, SKIP or RUN_ONCE, not %.200s",
                     Py_TYPE(answer)->tp_name);
        status = -1;
    }
    Py_DECREF(answer);
    return status;
}

/* Like ask(), but looks into the cache first. */
static int decide(Frame *frame, Cache *cache, Activation *activation, Found *found, PyObject **reason)
{
    PyCodeObject *code = frame_code(frame);
    cache->users++;
    int status = find_entry(cache, frame->localsplus, code_argument_count(code), frame_function(frame), activation, found);
    activation->found += status > 0;
    if (status == 0 && cache->skip) {
        cache->skips++; /* entries made before the SKIP are still used, new ones not asked for */
        *reason = reason_to_report(cache);
    }
    else if (status == 0 && cache->entries != NULL &&
             filter_call(cache, code, frame_function(frame), frame->localsplus) != OFFERED) {
        cache->misses++; /* entries made for other arguments */
    }
    else if (status == 0) {
        activation->found++;
        cache->misses++;
        status = activation->callback == NULL || Py_IsFinalizing() ? 0 : ask(frame, cache, activation, found, reason);
    }
    cache->errors += status < 0;
    cache_release(cache);
    return status;
}

static PyObject *run_found(PyThreadState *tstate, Frame *frame, Found *found, Local *local, TargetCall *target)
{
    PyObject *eager = found->entry->eager;
    local->activation->computed += eager == NULL;
    if (target != NULL && eager != NULL && PyUnicode_GET_LENGTH(eager) > 0) {
        target_computes_nothing(target, eager);
    }
    PyObject *result = run_entry(tstate, frame, found, local);
    Py_DECREF(found->entry);
    return result;
}

/* A call has run eagerly: whoever wants to know that it returned is called, and may raise. Takes `returned`. */
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
static PyObject *dispatch_as_usual(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local, TargetCall *target)
{
    Found found = {0};
    PyObject *reason = NULL;
    int status = decide(frame, cache, local->activation, &found, &reason);
    int with_calls = cache->skip == SKIPPED_RECURSIVELY;
    cache_release(cache);
    if (status < 0) {
        status = report_error(frame, local->activation, &found);
        reason = status == 0 ? reason_text("a callback or a check failed") : NULL;
    }
    if (status > 0) {
        return run_found(tstate, frame, &found, local, target);
    }
    if (status == 0 && reason != NULL) {
        status = target_runs_eagerly(target, reason, local->activation);
    }
    Py_XDECREF(reason);
    if (status < 0) {
        Py_XDECREF(found.returned);
        return abandon_frame(tstate, frame);
    }
    PyObject *result = with_calls ? evaluate_paused(tstate, frame, local) : evaluate(tstate, frame, 0, local);
    return found.returned == NULL ? result : report_returned(result, found.returned, local->activation);
}

/* The frame of a call that goes another way: see call_diverted() in compiled_function.c. Takes the callback. */
static PyObject *dispatch_diverted(PyThreadState *tstate, Frame *frame, PyObject *callback, Local *local)
{
    if (callback == NULL) {
        return evaluate_paused(tstate, frame, local);
    }
    PyObject *result = NULL;
    unsigned long long id;
    CodeState *state = code_state_find(frame_code(frame));
    Cache *cache = state == NULL || callback_cache(callback, &id) < 0 ? NULL : cache_get(state, id);
    if (cache == NULL) {
        PyErr_Clear(); /* out of memory: the program itself may still get by */
        result = evaluate(tstate, frame, 0, local);
    }
    else {
        Outer outer = activation_enter(local->activation, callback, id);
        local->activation->first = 0;
        cache->users++;
        result = dispatch_as_usual(tstate, frame, cache, local, NULL);
        activation_leave(local->activation, outer);
    }
    Py_DECREF(callback);
    return result;
}

PyObject *dispatch(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local, TargetCall *target)
{
    if (!may_be_diverted()) {
        cache->users++;
        return dispatch_as_usual(tstate, frame, cache, local, target);
    }
    PyObject *instead;
    Activation *activation = local->activation;
    cache->users++; /* Python code runs below: a reset would free the cache */
    PyObject *callback = Py_NewRef(activation->callback);
    int status = divert(callback, frame_function(frame), activation, &instead);
    Py_DECREF(callback);
    if (status != 0) {
        cache_release(cache);
    }
    if (status < 0) {
        return abandon_frame(tstate, frame);
    }
    if (status > 0) {
        return dispatch_diverted(tstate, frame, instead, local);
    }
    return dispatch_as_usual(tstate, frame, cache, local, target);
}

/* ---- for Python ---- */

static PyObject *optional(PyObject *value) { return value == Py_None ? NULL : Py_NewRef(value); }

static PyObject *swap(PyObject *callback, CacheArgument cache)
{
    if (callback != Py_None && !PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "set_callback: expected a callable or None, not %.200s",
                            Py_TYPE(callback)->tp_name);
    }
    Activation *activation = local_activation();
    if (activation == NULL) {
        return NULL;
    }
    if (!cache.given && callback != Py_None && callback_cache(callback, &cache.id) < 0) {
        return NULL;
    }
    PyObject *old = activation_swap(activation, optional(callback), cache.id);
    return old == NULL ? Py_NewRef(Py_None) : old;
}

static PyObject *py_set_callback(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "cache", NULL};
    PyObject *callback;
    CacheArgument cache = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O&:set_callback", names, &callback, cache_argument, &cache)) {
        return NULL;
    }
    return swap(callback, cache);
}

/* What `activated` needs to put everything back: (previous callback, previous cache, whether nothing was called yet). */
static PyObject *py_swap_callback(PyObject *module, PyObject *args)
{
    PyObject *callback;
    CacheArgument cache = {0};
    int first = 1;
    if (!PyArg_ParseTuple(args, "OO&|p:swap_callback", &callback, cache_argument, &cache, &first)) {
        return NULL;
    }
    Activation *activation = local_state()->activation;
    unsigned long long previous = activation == NULL ? 0 : activation->cache;
    int previous_first = activation == NULL ? 0 : activation->first;
    PyObject *old = swap(callback, cache);
    if (old == NULL) {
        return NULL;
    }
    local_state()->activation->first &= first;
    return Py_BuildValue("NKN", old, previous, PyBool_FromLong(previous_first));
}

static PyObject *py_get_callback(PyObject *module, PyObject *unused)
{
    Activation *activation = local_state()->activation;
    return Py_NewRef(activation == NULL || activation->callback == NULL ? Py_None : activation->callback);
}

static PyObject *py_set_error_handler(PyObject *module, PyObject *handler)
{
    if (handler != Py_None && !PyCallable_Check(handler)) {
        return PyErr_Format(PyExc_TypeError, "set_error_handler: expected a callable or None, not %.200s",
                            Py_TYPE(handler)->tp_name);
    }
    PyObject *old = error_handler;
    error_handler = optional(handler);
    return old == NULL ? Py_NewRef(Py_None) : old;
}

static PyObject *py_never_in_place(PyObject *module, PyObject *flag)
{
    int old = never_in_place;
    int new = PyObject_IsTrue(flag);
    if (new < 0) {
        return NULL;
    }
    never_in_place = new;
    return PyBool_FromLong(old);
}

PyMethodDef dispatch_methods[] = {
    {"set_callback", (PyCFunction)(void (*)(void))py_set_callback, METH_VARARGS | METH_KEYWORDS, NULL},
    {"swap_callback", py_swap_callback, METH_VARARGS, NULL},
    {"get_callback", py_get_callback, METH_NOARGS, NULL},
    {"set_error_handler", py_set_error_handler, METH_O, NULL},
    {"never_in_place", py_never_in_place, METH_O, NULL},
    {"hook_state", hook_state, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
