/* Functions for Python that take code objects, and their arguments. */
#ifndef FRAMESMITH_CODE_API_H
#define FRAMESMITH_CODE_API_H

#include "compat.h"

PyCodeObject *code_argument(PyObject *target); /* borrowed; NULL with an exception */

/* An argument `cache`: None or an integer. */
typedef struct {
    int given;
    unsigned long long id;
} CacheArgument;

int cache_argument(PyObject *value, void *argument); /* a PyArg converter */

extern PyMethodDef code_methods[];

#endif
