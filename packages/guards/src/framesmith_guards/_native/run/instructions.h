/* One instruction of a program, but RUN_BLOCK. 1: holds; 0: misses; -1: an exception is set. */
#ifndef FRAMESMITH_GUARDS_INSTRUCTIONS_H
#define FRAMESMITH_GUARDS_INSTRUCTIONS_H

#include "run/program.h"

int run_instruction(Program *program, const Instruction *i, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *function, PyObject **registers);

/* As `with no_torch_function():` begins: a new reference to the manager, or NULL with an exception. */
PyObject *enter_no_torch_function(PyObject *no_torch_function);
/* Leave that manager (steals it). Return `status`, or -1 if leaving failed. */
int leave_no_torch_function(PyObject *manager, int status);

#endif
