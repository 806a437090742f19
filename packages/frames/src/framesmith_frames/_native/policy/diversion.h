/* Diversion of calls by a setting of the program: `divert_by` in the package's README. */
#ifndef FRAMESMITH_DIVERSION_H
#define FRAMESMITH_DIVERSION_H

#include "data/activation.h"

typedef struct {
    PyObject *namespace, *name, *judge; /* all NULL: there is no such setting */
    PyObject *seen;      /* strong: the latest value given to `judge`; or NULL */
    PyObject *diversion; /* strong: the answer of `judge`; NULL: calls are not diverted */
} Setting;

extern Setting watched_setting;

static inline PyObject *current_setting(void) /* borrowed, or NULL */
{
    return PyDict_GetItemWithError(watched_setting.namespace, watched_setting.name); /* str keys: it cannot fail */
}

static inline int may_be_diverted(void)
{
    return watched_setting.namespace != NULL &&
           (watched_setting.diversion != NULL || current_setting() != watched_setting.seen);
}

/* 1: *instead is the callback to use (strong), NULL: run the call eagerly with the hook off; 0: no diversion; -1: an
 * exception. */
int divert(PyObject *callback, PyObject *function, Activation *activation, PyObject **instead);

#endif
