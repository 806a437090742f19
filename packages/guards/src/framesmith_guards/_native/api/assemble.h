/* Programs from their descriptions; what the garbage collector needs of them. */
#ifndef FRAMESMITH_GUARDS_ASSEMBLE_H
#define FRAMESMITH_GUARDS_ASSEMBLE_H

#include "run/program.h"

/* 0, or -1 with an exception: clear the program then. */
int program_assemble(Program *program, PyObject *description);
void program_clear(Program *program);
int program_traverse(Program *program, visitproc visit, void *arg);

#endif
