/* The per-code cache: entries, skip mark and counts, hung on the code object's co_extra and freed with it.
 *
 * The list of entries is a tuple that is replaced when it changes, so that a thread walking it (a checker may run Python
 * code and so let other threads in) is never disturbed by another one's reset. */

#include "native.h"

static Py_ssize_t extra_index = -1;
static CodeState *all_states = NULL;

unsigned long long reset_generation = 0;

static void code_state_free(void *extra)
{
    CodeState *state = extra;
    if (state == NULL) {
        return;
    }
    if (state->previous != NULL) {
        state->previous->next = state->next;
    }
    else {
        all_states = state->next;
    }
    if (state->next != NULL) {
        state->next->previous = state->previous;
    }
    PyObject *entries = state->entries;
    PyObject *reason = state->reason;
    PyMem_Free(state);
    Py_XDECREF(entries);
    Py_XDECREF(reason);
}

int code_state_init(void)
{
    if (extra_index >= 0) {
        return 0;
    }
    extra_index = request_code_extra_index(code_state_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "the interpreter has no co_extra slot left for framesmith_frames");
        return -1;
    }
    return 0;
}

CodeState *code_state_find(PyCodeObject *code)
{
    void *extra = NULL;
    if (get_code_extra((PyObject *)code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

CodeState *code_state_get(PyCodeObject *code)
{
    CodeState *state = code_state_find(code);
    if (state != NULL) {
        return state;
    }
    state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = code;
    if (set_code_extra((PyObject *)code, extra_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    state->next = all_states;
    if (all_states != NULL) {
        all_states->previous = state;
    }
    all_states = state;
    return state;
}

/* ---- entries ---- */

static PyObject *with_first(PyObject *entries, PyObject *first)
{
    Py_ssize_t size = entries == NULL ? 0 : PyTuple_GET_SIZE(entries);
    PyObject *others = PyList_New(0);
    if (others == NULL || PyList_Append(others, first) < 0) {
        Py_XDECREF(others);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (entry != first && PyList_Append(others, entry) < 0) {
            Py_DECREF(others);
            return NULL;
        }
    }
    PyObject *result = PyList_AsTuple(others);
    Py_DECREF(others);
    return result;
}

int code_state_add(CodeState *state, PyObject *entry)
{
    PyObject *entries = with_first(state->entries, entry);
    if (entries == NULL) {
        return -1;
    }
    Py_XSETREF(state->entries, entries);
    return 0;
}

/* Moves the entry to the front of `entries`, unless the list has been replaced meanwhile. */
void code_state_use(CodeState *state, PyObject *entry, PyObject *entries)
{
    if (state->entries != entries || PyTuple_GET_ITEM(entries, 0) == entry) {
        return;
    }
    if (Py_REFCNT(entries) == 2) { /* the state's and the caller's: nobody else walks it */
        PyObject *moving = entry;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
            PyObject *here = PyTuple_GET_ITEM(entries, i);
            PyTuple_SET_ITEM(entries, i, moving);
            if (here == entry) {
                return;
            }
            moving = here;
        }
    }
    if (code_state_add(state, entry) < 0) {
        PyErr_Clear(); /* the order is an optimisation */
    }
}

void code_state_skip(CodeState *state, int kind, PyObject *reason)
{
    state->skip = kind;
    Py_XSETREF(state->reason, Py_XNewRef(reason));
}

/* Forgets what callbacks answered; marks set by the program and those on residual code stay. What is forgotten goes into
 * `dropped`, because freeing it may run Python code, which must not happen while the states are walked. */
static int code_state_reset(CodeState *state, PyObject *dropped)
{
    if (state->entries != NULL && PyList_Append(dropped, state->entries) < 0) {
        return -1;
    }
    Py_CLEAR(state->entries);
    if (state->skip == SKIP_ANSWERED || state->skip == NOT_SKIPPED) {
        if (state->reason != NULL && PyList_Append(dropped, state->reason) < 0) {
            return -1;
        }
        state->skip = NOT_SKIPPED;
        Py_CLEAR(state->reason);
    }
    state->hits = state->misses = state->skips = state->run_once = state->rejected = state->errors = 0;
    return 0;
}

static int reset(PyCodeObject *code)
{
    PyObject *dropped = PyList_New(0);
    if (dropped == NULL) {
        return -1;
    }
    reset_generation++;
    int status = 0;
    if (code != NULL) {
        CodeState *state = code_state_find(code);
        status = state == NULL ? 0 : code_state_reset(state, dropped);
    }
    else {
        for (CodeState *state = all_states; state != NULL && status == 0; state = state->next) {
            status = code_state_reset(state, dropped);
        }
    }
    if (status == 0) {
        status = compiled_functions_reset(dropped);
    }
    Py_DECREF(dropped);
    return status;
}

/* ---- for Python ---- */

static PyCodeObject *code_argument(PyObject *target)
{
    if (PyMethod_Check(target)) {
        target = PyMethod_GET_FUNCTION(target);
    }
    if (Py_IS_TYPE(target, &CompiledFunction_Type) || Py_IS_TYPE(target, &WithoutHook_Type)) {
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

static PyObject *py_reset(PyObject *module, PyObject *args)
{
    PyObject *target = Py_None;
    if (!PyArg_ParseTuple(args, "|O:reset", &target)) {
        return NULL;
    }
    PyCodeObject *code = NULL;
    if (target != Py_None && (code = code_argument(target)) == NULL) {
        return NULL;
    }
    if (reset(code) < 0) {
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
    code_state_skip(state, SKIP_EXPLICIT, reason);
    Py_RETURN_NONE;
}

static PyObject *py_unskip(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = code_state_find(code);
    if (state == NULL || state->skip == NOT_SKIPPED) {
        Py_RETURN_FALSE;
    }
    code_state_skip(state, NOT_SKIPPED, NULL);
    Py_RETURN_TRUE;
}

static PyObject *py_skip_reason(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = code_state_find(code);
    if (state == NULL || state->skip == NOT_SKIPPED || state->reason == NULL) {
        Py_RETURN_NONE;
    }
    return Py_NewRef(state->reason);
}

static PyObject *py_entries(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    if (code == NULL) {
        return NULL;
    }
    CodeState *state = code_state_find(code);
    return state == NULL || state->entries == NULL ? PyList_New(0) : PySequence_List(state->entries);
}

static PyObject *py_counts(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    if (code == NULL) {
        return NULL;
    }
    CodeState none = {0};
    CodeState *state = code_state_find(code);
    if (state == NULL) {
        state = &none;
    }
    return Py_BuildValue("KKKKKKO", state->hits, state->misses, state->skips, state->run_once, state->rejected,
                         state->errors, state->reason == NULL ? Py_None : state->reason);
}

PyMethodDef code_state_methods[] = {
    {"reset", py_reset, METH_VARARGS, NULL},
    {"skip", py_skip, METH_VARARGS, NULL},
    {"unskip", py_unskip, METH_O, NULL},
    {"skip_reason", py_skip_reason, METH_O, NULL},
    {"entries", py_entries, METH_O, NULL},
    {"counts", py_counts, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
