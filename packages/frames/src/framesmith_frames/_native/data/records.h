/* The callback's argument (FrameInfo) and its answers (Entry, SKIP, RUN_ONCE). */
#ifndef FRAMESMITH_RECORDS_H
#define FRAMESMITH_RECORDS_H

#include "check_abi.h"
#include "compat.h"

/* A call of a function, before its code runs. All are borrowed. */
typedef struct {
    PyCodeObject *code;
    PyObject *function;
    PyObject *const *args; /* in co_varnames order, code_argument_count(code) of them */
} Call;

typedef struct {
    PyObject_HEAD
    PyObject *check;
    PyObject *code;
    PyObject *flat_code; /* the same code with every argument positional, the inputs last; made when first needed */
    const framesmith_check_v1 *native;
    PyObject *capsule; /* keeps `native` alive */
    PyObject *extract; /* the method of a checker without capsule, if `inputs` */
    char complete;
    char inputs;     /* the check returns a tuple for the first local of `code` after the arguments */
    PyObject *eager; /* str: why `code` computes nothing compiled, empty if there is nothing to compute; NULL: it does */
    unsigned long long hits;
    PyObject *weakrefs;
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *reason;
    char quiet;         /* not reported to on_eager */
    char recursive;     /* SKIP: the hook is also off in the functions that the code calls */
    PyObject *returned; /* RUN_ONCE: called without arguments when the call returns and does not raise; or NULL */
} Answer;

extern PyTypeObject Entry_Type, Skip_Type, RunOnce_Type, FrameInfo_Type;
int code_argument_count(PyCodeObject *code);
PyObject *frame_info_new(const Call *call, unsigned long long cache_id);
int entry_fits(Entry *entry, PyCodeObject *code); /* 0, or -1 with an exception that names the difference */
/* 1, 0 or -1; with 1 and an entry with inputs, *inputs is their tuple (strong), else NULL. */
int entry_check(Entry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **inputs);
PyObject *entry_flat_code(Entry *entry); /* borrowed */

#endif
