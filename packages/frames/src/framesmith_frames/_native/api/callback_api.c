#include "api/callback_api.h"

#include "api/code_api.h"
#include "data/activation.h"
#include "data/owner.h"
#include "hook/evaluator.h"
#include "hook/layout.h"
#include "hook/replace.h"
#include "policy/decision.h"
#include "policy/diversion.h"

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

/* Returns the state that `activated` restores: (callback, cache, whether nothing was called since it was set). */
static PyObject *py_swap_callback(PyObject *module, PyObject *args)
{
    PyObject *callback;
    CacheArgument cache = {0};
    int first = 1;
    if (!PyArg_ParseTuple(args, "OO&|p:swap_callback", &callback, cache_argument, &cache, &first)) {
        return NULL;
    }
    Activation *activation = local_state()->activation;
    unsigned long long previous = activation == NULL ? 0 : activation->cache_id;
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

static PyObject *py_divert_by(PyObject *module, PyObject *args)
{
    PyObject *namespace, *name, *judge;
    if (!PyArg_ParseTuple(args, "O!UO:divert_by", &PyDict_Type, &namespace, &name, &judge)) {
        return NULL;
    }
    if (!PyCallable_Check(judge)) {
        return PyErr_Format(PyExc_TypeError, "divert_by: expected a callable, not %.200s", Py_TYPE(judge)->tp_name);
    }
    Setting former = watched_setting;
    PyObject *given = former.namespace == NULL ? Py_NewRef(Py_None)
                                               : Py_BuildValue("OOO", former.namespace, former.name, former.judge);
    if (given == NULL) {
        return NULL;
    }
    PyObject *interned = Py_NewRef(name);
    PyUnicode_InternInPlace(&interned);
    watched_setting = (Setting){Py_NewRef(namespace), interned, Py_NewRef(judge), NULL, NULL};
    Py_XDECREF(former.namespace);
    Py_XDECREF(former.name);
    Py_XDECREF(former.judge);
    Py_XDECREF(former.seen);
    Py_XDECREF(former.diversion);
    return given;
}

PyMethodDef callback_methods[] = {
    {"set_callback", (PyCFunction)(void (*)(void))py_set_callback, METH_VARARGS | METH_KEYWORDS, NULL},
    {"swap_callback", py_swap_callback, METH_VARARGS, NULL},
    {"get_callback", py_get_callback, METH_NOARGS, NULL},
    {"set_error_handler", py_set_error_handler, METH_O, NULL},
    {"never_in_place", py_never_in_place, METH_O, NULL},
    {"divert_by", py_divert_by, METH_VARARGS, NULL},
    {"hook_state", hook_state, METH_NOARGS, NULL},
    {"frame_layout", frame_layout, METH_NOARGS, NULL},
    {"check_frame_layout", check_frame_layout, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
