/* What runs for a call: an entry from the cache, a new one from the callback, or the frame itself. */
#ifndef FRAMESMITH_DECISION_H
#define FRAMESMITH_DECISION_H

#include "data/activation.h"
#include "data/code_state.h"
#include "data/records.h"

typedef struct {
    Entry *entry;       /* strong: the entry that applies */
    PyObject *inputs;   /* strong: the tuple from its check; NULL if it has no inputs */
    PyObject *returned; /* strong: without an entry, called when the call returns; or NULL */
    int with_calls;     /* without an entry, whether the functions that the frame calls run eagerly as well */
} Found;

extern PyObject *error_handler; /* strong, or NULL */

/* 1: *found is filled; 0: no entry applies; -1: a checker raised. */
int find_entry(Cache *cache, PyObject *const *args, Py_ssize_t nargs, PyObject *function, Activation *activation,
               Found *found);
/* The same, and asks the callback where no entry applies. With 0, *reason (strong) is the reason to report, or NULL. */
int decide(const Call *call, Cache *cache, Activation *activation, Found *found, PyObject **reason);
/* Passes the exception set to the error handler. 1: run *found; 0: run the frame eagerly; -1: an exception for the caller. */
int report_error(const Call *call, Activation *activation, Found *found);
PyObject *reason_text(const char *text); /* NULL without an exception if out of memory */

#endif
