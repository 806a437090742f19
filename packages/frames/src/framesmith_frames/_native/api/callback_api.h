/* Functions for Python that set callbacks, the error handler and the diversion. */
#ifndef FRAMESMITH_CALLBACK_API_H
#define FRAMESMITH_CALLBACK_API_H

#include "compat.h"

extern PyMethodDef callback_methods[];

#endif
