/* BackwardCall, the usual pass of an autograd node without Python around it. */
#ifndef FRAMESMITH_GUARDS_BACKWARD_H
#define FRAMESMITH_GUARDS_BACKWARD_H

#include "instruction.h"

/* A new reference to the type, or NULL with an exception. */
PyObject *backward_call_type(void);

#endif
