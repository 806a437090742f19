/* The base of CompiledFunction and without_hook, which look like the function that they wrap. */
#ifndef FRAMESMITH_WRAPPER_H
#define FRAMESMITH_WRAPPER_H

#include "compat.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *wrapped;
    PyObject *dict;
    PyObject *weakrefs;
} Wrapper;

int wrapper_traverse(Wrapper *self, visitproc visit, void *arg);
int wrapper_clear(Wrapper *self);
void wrapper_dealloc(PyObject *self); /* of an object already untracked */
PyObject *wrapper_bind_method(PyObject *self, PyObject *instance, PyObject *owner);
PyObject *wrapper_getattro(PyObject *self, PyObject *name);
extern PyGetSetDef wrapper_getset[];
extern PyMethodDef wrapper_methods[];
extern PyTypeObject WithoutHook_Type;

static inline int is_wrapper(PyObject *object) { return Py_TYPE(object)->tp_descr_get == wrapper_bind_method; }

#endif
