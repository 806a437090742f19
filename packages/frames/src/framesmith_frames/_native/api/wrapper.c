#include "api/wrapper.h"

#include "data/activation.h"
#include <structmember.h>

int wrapper_traverse(Wrapper *self, visitproc visit, void *arg)
{
    Py_VISIT(self->wrapped);
    Py_VISIT(self->dict);
    return 0;
}

/* `wrapped` is not cleared: it never changes, so each cycle through it also passes through a younger object that can be
 * cleared, and a finalizer may still call a wrapper that the collector has cleared. */
int wrapper_clear(Wrapper *self)
{
    Py_CLEAR(self->dict);
    return 0;
}

void wrapper_dealloc(PyObject *self)
{
    Wrapper *wrapper = (Wrapper *)self;
    if (wrapper->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_CLEAR(wrapper->wrapped);
    Py_CLEAR(wrapper->dict);
    Py_TYPE(self)->tp_free(self);
}

PyObject *wrapper_bind_method(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* Attributes that neither the type nor the wrapper's own dict has are the wrapped function's. */
PyObject *wrapper_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    PyErr_Clear();
    return PyObject_GetAttr(((Wrapper *)self)->wrapped, name);
}

/* Attributes that the type itself has (`__doc__`, `__name__`): read from the wrapped function or, once they are set, from the
 * wrapper's dict. */
static PyObject *get_forwarded(PyObject *self, void *name)
{
    Wrapper *wrapper = (Wrapper *)self;
    PyObject *value = wrapper->dict == NULL ? NULL : PyDict_GetItemString(wrapper->dict, name);
    if (value != NULL) {
        return Py_NewRef(value);
    }
    return PyObject_GetAttrString(wrapper->wrapped, name);
}

static int set_forwarded(PyObject *self, PyObject *value, void *name)
{
    PyObject *dict = PyObject_GenericGetDict(self, NULL);
    if (dict == NULL) {
        return -1;
    }
    int status = value == NULL ? PyDict_DelItemString(dict, name) : PyDict_SetItemString(dict, name, value);
    Py_DECREF(dict);
    return status;
}

static PyObject *get_wrapped(PyObject *self, void *unused) { return Py_NewRef(((Wrapper *)self)->wrapped); }

PyGetSetDef wrapper_getset[] = {
    {"__wrapped__", get_wrapped, NULL, NULL, NULL},
    {"__doc__", get_forwarded, set_forwarded, NULL, "__doc__"},
    {"__name__", get_forwarded, set_forwarded, NULL, "__name__"},
    {"__qualname__", get_forwarded, set_forwarded, NULL, "__qualname__"},
    {"__module__", get_forwarded, set_forwarded, NULL, "__module__"},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *import_global(PyObject *module_name, PyObject *qualname)
{
    PyObject *found = PyImport_GetModule(module_name);
    PyObject *dot = PyUnicode_FromString(".");
    PyObject *parts = dot == NULL ? NULL : PyUnicode_Split(qualname, dot, -1);
    Py_XDECREF(dot);
    for (Py_ssize_t i = 0; parts != NULL && found != NULL && i < PyList_GET_SIZE(parts); i++) {
        Py_SETREF(found, PyObject_GetAttr(found, PyList_GET_ITEM(parts, i)));
    }
    Py_XDECREF(parts);
    PyErr_Clear();
    return found;
}

/* A wrapper pickles as its global name where that name refers to the wrapper (it was used as a decorator), else as the wrapped
 * function. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *protocol)
{
    PyObject *module_name = PyObject_GetAttrString(self, "__module__");
    PyObject *qualname = module_name == NULL ? NULL : PyObject_GetAttrString(self, "__qualname__");
    PyObject *result = NULL;
    if (qualname != NULL) {
        PyObject *found = import_global(module_name, qualname);
        if (found == self) {
            result = Py_NewRef(qualname);
        }
        else {
            PyObject *own_module = PyImport_ImportModule("framesmith_frames.pickling");
            PyObject *restore = own_module == NULL ? NULL : PyObject_GetAttrString(own_module, "restore");
            result = restore == NULL ? NULL : Py_BuildValue("(N(O))", restore, ((Wrapper *)self)->wrapped);
            Py_XDECREF(own_module);
        }
        Py_XDECREF(found);
    }
    Py_XDECREF(module_name);
    Py_XDECREF(qualname);
    return result;
}

static PyObject *wrapper_copy(PyObject *self, PyObject *memo) { return Py_NewRef(self); }

PyMethodDef wrapper_methods[] = {
    {"__reduce_ex__", wrapper_reduce, METH_O, NULL},
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},
    {"__deepcopy__", wrapper_copy, METH_O, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL}, /* generic in the stub */
    {NULL, NULL, 0, NULL},
};

/* ---- without_hook ---- */

static PyObject *without_hook_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *wrapped = ((Wrapper *)self)->wrapped;
    Activation *activation = local_state()->activation;
    if (activation == NULL || activation_is_off(activation)) {
        return PyObject_Vectorcall(wrapped, args, nargsf, kwnames);
    }
    activation->paused++;
    PyObject *result = PyObject_Vectorcall(wrapped, args, nargsf, kwnames);
    activation->paused--;
    return result;
}

static PyObject *without_hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:without_hook", names, &function)) {
        return NULL;
    }
    if (!PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "without_hook: expected a callable, not %.200s", Py_TYPE(function)->tp_name);
    }
    Wrapper *self = (Wrapper *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = without_hook_vectorcall;
        self->wrapped = Py_NewRef(function);
    }
    return (PyObject *)self;
}

static void without_hook_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    wrapper_dealloc(self);
}

static PyObject *without_hook_repr(Wrapper *self) { return PyUnicode_FromFormat("<without_hook %R>", self->wrapped); }

PyTypeObject WithoutHook_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.without_hook",
    .tp_basicsize = sizeof(Wrapper),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = without_hook_new,
    .tp_dealloc = without_hook_dealloc,
    .tp_traverse = (traverseproc)wrapper_traverse,
    .tp_clear = (inquiry)wrapper_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),
    .tp_descr_get = wrapper_bind_method,
    .tp_getattro = wrapper_getattro,
    .tp_getset = wrapper_getset,
    .tp_methods = wrapper_methods,
    .tp_repr = (reprfunc)without_hook_repr,
    .tp_dictoffset = offsetof(Wrapper, dict),
    .tp_weaklistoffset = offsetof(Wrapper, weakrefs),
};
