#include "api/code_api.h"

#include "api/wrapper.h"
#include "data/activation.h"
#include "data/code_state.h"
#include "data/interest.h"
#include "data/owner.h"

PyCodeObject *code_argument(PyObject *target)
{
    if (PyMethod_Check(target)) {
        target = PyMethod_GET_FUNCTION(target);
    }
    if (is_wrapper(target)) {
        target = ((Wrapper *)target)->wrapped;
    }
    if (PyFunction_Check(target)) {
        return (PyCodeObject *)PyFunction_GET_CODE(target);
    }
    if (!PyCode_Check(target)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, a Python function or a method, not %.200s",
                     Py_TYPE(target)->tp_name);
        return NULL;
    }
    return (PyCodeObject *)target;
}

static CodeState *state_of(PyObject *target, int *failed)
{
    PyCodeObject *code = code_argument(target);
    *failed = code == NULL;
    return code == NULL ? NULL : code_state_find(code);
}

int cache_argument(PyObject *value, void *argument)
{
    CacheArgument *cache = argument;
    cache->given = value != Py_None;
    if (!cache->given) {
        return 1;
    }
    cache->id = PyLong_AsUnsignedLongLong(value);
    if (cache->id == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "cache: expected None or an integer from new_cache(), not %R", value);
        return 0;
    }
    return 1;
}

static PyObject *py_reset(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "cache", NULL};
    PyObject *target = Py_None;
    CacheArgument cache = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O&:reset", names, &target, cache_argument, &cache)) {
        return NULL;
    }
    PyCodeObject *code = NULL;
    if (target != Py_None && (code = code_argument(target)) == NULL) {
        return NULL;
    }
    if (reset_caches(code, cache.given ? &cache.id : NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_skip(PyObject *module, PyObject *args)
{
    PyObject *target, *reason;
    if (!PyArg_ParseTuple(args, "OU:skip", &target, &reason)) {
        return NULL;
    }
    PyCodeObject *code = code_argument(target);
    CodeState *state = code == NULL ? NULL : code_state_get(code);
    if (state == NULL) {
        return NULL;
    }
    if (state->mark != MARKED_RESIDUAL) {
        code_state_mark(state, MARKED_BY_PROGRAM, reason);
    }
    Py_RETURN_NONE;
}

static PyObject *py_unskip(PyObject *module, PyObject *target)
{
    int failed;
    CodeState *state = state_of(target, &failed);
    if (failed) {
        return NULL;
    }
    if (state == NULL || state->mark != MARKED_BY_PROGRAM) {
        Py_RETURN_FALSE;
    }
    code_state_mark(state, NOT_MARKED, NULL);
    Py_RETURN_TRUE;
}

static PyObject *py_skip_reason(PyObject *module, PyObject *target)
{
    int failed;
    CodeState *state = state_of(target, &failed);
    if (failed) {
        return NULL;
    }
    PyObject *reason = NULL;
    if (state != NULL && state->mark != NOT_MARKED) {
        reason = state->mark_reason;
    }
    for (Cache *cache = state == NULL ? NULL : state->caches; cache != NULL && reason == NULL; cache = cache->next) {
        reason = cache->skip ? cache->reason : NULL;
    }
    return Py_NewRef(reason == NULL ? Py_None : reason);
}

static PyObject *py_entries(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "cache", NULL};
    PyObject *target;
    CacheArgument only = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O&:entries", names, &target, cache_argument, &only)) {
        return NULL;
    }
    Activation *activation = local_state()->activation;
    if (!only.given && activation != NULL && activation->callback != NULL) {
        only.given = 1;
        only.id = activation->cache_id;
    }
    int failed;
    CodeState *state = state_of(target, &failed);
    PyObject *all = failed ? NULL : PyList_New(0);
    for (Cache *cache = state == NULL ? NULL : state->caches; cache != NULL && all != NULL; cache = cache->next) {
        if (cache->entries == NULL || (only.given && cache->id != only.id)) {
            continue;
        }
        Py_ssize_t end = PyList_GET_SIZE(all);
        if (PyList_SetSlice(all, end, end, cache->entries) < 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}

static PyObject *py_counts(PyObject *module, PyObject *target)
{
    int failed;
    CodeState *state = state_of(target, &failed);
    if (failed) {
        return NULL;
    }
    Cache sum = {0};
    PyObject *reason = state == NULL ? NULL : state->mark_reason;
    sum.skips = state == NULL ? 0 : state->skips;
    for (Cache *cache = state == NULL ? NULL : state->caches; cache != NULL; cache = cache->next) {
        sum.hits += cache->hits;
        sum.misses += cache->misses;
        sum.skips += cache->skips;
        sum.run_once += cache->run_once;
        sum.rejected += cache->rejected;
        sum.errors += cache->errors;
        sum.filtered += cache->filtered;
        reason = reason == NULL ? cache->reason : reason;
    }
    PyObject *given = Py_NewRef(reason == NULL ? Py_None : reason); /* making the tuple may collect garbage: a finalizer may reset */
    return Py_BuildValue("KKKKKKKN", sum.hits, sum.misses, sum.skips, sum.run_once, sum.rejected, sum.errors, sum.filtered,
                         given);
}

static int validate_packages(PyObject *packages)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(packages); i++) {
        PyObject *package = PyTuple_GET_ITEM(packages, i);
        if (!PyUnicode_Check(package) || PyUnicode_AsUTF8(package) == NULL) {
            PyErr_Format(PyExc_TypeError, "set_interest_filter: packages are named by strings, not %.200s",
                         Py_TYPE(package)->tp_name);
            return -1;
        }
    }
    return 0;
}

static PyObject *py_set_interest_filter(PyObject *module, PyObject *args)
{
    PyObject *callback, *packages;
    unsigned long long id;
    if (!PyArg_ParseTuple(args, "OO!:set_interest_filter", &callback, &PyTuple_Type, &packages)) {
        return NULL;
    }
    if (!PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "set_interest_filter: expected a callable, not %.200s",
                            Py_TYPE(callback)->tp_name);
    }
    if (validate_packages(packages) < 0 || callback_cache(callback, &id) < 0 || interest_add(packages, id) < 0 ||
        reset_caches(NULL, &id) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_always_offer(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    CodeState *state = code == NULL ? NULL : code_state_get(code);
    if (state == NULL) {
        return NULL;
    }
    state->always_offered = 1;
    Py_RETURN_NONE;
}

static PyObject *py_new_cache(PyObject *module, PyObject *unused) { return PyLong_FromUnsignedLongLong(new_cache_id()); }

PyMethodDef code_methods[] = {
    {"reset", (PyCFunction)(void (*)(void))py_reset, METH_VARARGS | METH_KEYWORDS, NULL},
    {"skip", py_skip, METH_VARARGS, NULL},
    {"unskip", py_unskip, METH_O, NULL},
    {"skip_reason", py_skip_reason, METH_O, NULL},
    {"entries", (PyCFunction)(void (*)(void))py_entries, METH_VARARGS | METH_KEYWORDS, NULL},
    {"counts", py_counts, METH_O, NULL},
    {"set_interest_filter", py_set_interest_filter, METH_VARARGS, NULL},
    {"always_offer", py_always_offer, METH_O, NULL},
    {"new_cache", py_new_cache, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
