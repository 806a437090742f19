/* CompiledFunction: a callable that dispatches to the entries of the function it wraps without the frame hook. */
#ifndef FRAMESMITH_COMPILED_FUNCTION_H
#define FRAMESMITH_COMPILED_FUNCTION_H

#include "api/wrapper.h"

extern PyTypeObject CompiledFunction_Type;
void compiled_functions_init(void);

#endif
