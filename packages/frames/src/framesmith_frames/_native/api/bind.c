#include "api/bind.h"

#include "data/records.h"

typedef struct {
    PyFunctionObject *function;
    PyCodeObject *code;
    PyObject **slots; /* strong references; NULL: not bound yet */
    PyObject *extra;  /* the **kwargs dict (borrowed), or NULL */
} Target;

static PyObject *argument_name(PyCodeObject *code, Py_ssize_t i) { return PyTuple_GET_ITEM(code->co_localsplusnames, i); }

static int same_name(PyObject *left, PyObject *right)
{
    return left == right || PyObject_RichCompareBool(left, right, Py_EQ) > 0;
}

/* The slot a keyword fills, or -1; keyword names are exact strings, so that comparing them cannot fail. */
static Py_ssize_t find_slot(PyCodeObject *code, PyObject *name)
{
    Py_ssize_t named = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = code->co_posonlyargcount; i < named; i++) {
        if (argument_name(code, i) == name) {
            return i;
        }
    }
    for (Py_ssize_t i = code->co_posonlyargcount; i < named; i++) {
        if (same_name(argument_name(code, i), name)) {
            return i;
        }
    }
    return -1;
}

/* Each of these returns what bind_arguments() does. */

static int bind_keywords(Target *target, PyObject *const *values, PyObject *kwnames)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (!PyUnicode_CheckExact(name)) {
            return 0; /* a str subclass may override comparison: CPython binds it */
        }
        Py_ssize_t slot = find_slot(target->code, name);
        if (slot >= 0) {
            if (target->slots[slot] != NULL) {
                return 0;
            }
            target->slots[slot] = Py_NewRef(values[i]);
        }
        else if (target->extra == NULL) {
            return 0;
        }
        else if (PyDict_SetItem(target->extra, name, values[i]) < 0) {
            return -1;
        }
    }
    return 1;
}

static int bind_defaults(Target *target)
{
    PyCodeObject *code = target->code;
    PyObject *defaults = target->function->func_defaults;
    Py_ssize_t count = defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults);
    Py_ssize_t first = code->co_argcount - count;
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        if (target->slots[i] == NULL) {
            if (i < first) {
                return 0;
            }
            target->slots[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - first));
        }
    }
    PyObject *by_name = target->function->func_kwdefaults;
    for (Py_ssize_t i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        if (target->slots[i] == NULL) {
            target->slots[i] = by_name == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(by_name, argument_name(code, i)));
            if (target->slots[i] == NULL) {
                return PyErr_Occurred() ? -1 : 0;
            }
        }
    }
    return 1;
}

static int bind_positional(Target *target, PyObject *const *args, Py_ssize_t nargs)
{
    PyCodeObject *code = target->code;
    Py_ssize_t own = nargs < code->co_argcount ? nargs : code->co_argcount;
    Py_ssize_t slot = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = 0; i < own; i++) {
        target->slots[i] = Py_NewRef(args[i]);
    }
    if (code->co_flags & CO_VARARGS) {
        PyObject *rest = PyTuple_New(nargs - own);
        if (rest == NULL) {
            return -1;
        }
        for (Py_ssize_t i = own; i < nargs; i++) {
            PyTuple_SET_ITEM(rest, i - own, Py_NewRef(args[i]));
        }
        target->slots[slot++] = rest;
    }
    else if (nargs > own) {
        return 0;
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        target->extra = target->slots[slot] = PyDict_New();
        return target->extra == NULL ? -1 : 1;
    }
    return 1;
}

static int bind_slowly(Binding *binding, PyFunctionObject *function, PyCodeObject *code, PyObject *const *args,
                       Py_ssize_t nargs, PyObject *kwnames)
{
    binding->count = code_argument_count(code);
    binding->owned = binding->small;
    if (binding->count > BOUND_ON_STACK) {
        binding->owned = PyMem_Malloc(binding->count * sizeof(PyObject *));
        if (binding->owned == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    memset(binding->owned, 0, binding->count * sizeof(PyObject *));
    binding->args = binding->owned;
    Target target = {function, code, binding->owned, NULL};
    int status = bind_positional(&target, args, nargs);
    if (status > 0 && kwnames != NULL) {
        status = bind_keywords(&target, args + nargs, kwnames);
    }
    return status > 0 ? bind_defaults(&target) : status;
}

int bind_arguments(Binding *binding, PyFunctionObject *function, PyCodeObject *code, PyObject *const *args,
                   Py_ssize_t nargs, PyObject *kwnames)
{
    binding->args = args;
    binding->owned = NULL;
    binding->count = 0;
    if (kwnames == NULL && nargs == code->co_argcount && code->co_kwonlyargcount == 0 &&
        (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0) {
        return 1;
    }
    return bind_slowly(binding, function, code, args, nargs, kwnames);
}

void bind_release(Binding *binding)
{
    if (binding->owned == NULL) {
        return;
    }
    for (int i = 0; i < binding->count; i++) {
        Py_XDECREF(binding->owned[i]);
    }
    if (binding->owned != binding->small) {
        PyMem_Free(binding->owned);
    }
    binding->owned = NULL;
}
