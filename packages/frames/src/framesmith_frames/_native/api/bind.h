/* Binding the arguments of a call, as CPython's own function call does, into one array in frame order. */
#ifndef FRAMESMITH_BIND_H
#define FRAMESMITH_BIND_H

#include "compat.h"

enum { BOUND_ON_STACK = 16 };

typedef struct {
    PyObject *const *args; /* in co_varnames order, *args and **kwargs packed: the caller's array, or `owned` */
    PyObject **owned;      /* strong references, or NULL */
    int count;             /* of `owned` */
    PyObject *small[BOUND_ON_STACK];
} Binding;

/* 1: bound; 0: the function does not take these arguments (no exception is set); -1: out of memory. */
int bind_arguments(Binding *binding, PyFunctionObject *function, PyCodeObject *code, PyObject *const *args,
                   Py_ssize_t nargs, PyObject *kwnames);
void bind_release(Binding *binding);

#endif
