/* Running a program. */
#ifndef FRAMESMITH_GUARDS_RUN_H
#define FRAMESMITH_GUARDS_RUN_H

#include "run/program.h"

/* 1: all guards hold; 0: one misses; -1: an exception is set (any; the caller decides which of them is a miss). */
int program_run(Program *program, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **registers);

#endif
