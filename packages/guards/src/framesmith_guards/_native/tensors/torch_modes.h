/* What may be active in a thread of torch, read without running Python: one bit for each. */
#ifndef FRAMESMITH_GUARDS_TORCH_MODES_H
#define FRAMESMITH_GUARDS_TORCH_MODES_H

#include "instruction.h"

/* The names are shared with programs/native/modes.py through the module's MODES dict. */
#define FOR_EACH_MODE(X)                                                                                              \
    X(FUNCTION_MODE)         /* a torch-function mode */                                                              \
    X(DISPATCH_MODE)         /* a torch-dispatch mode */                                                              \
    X(TRACING)               /* torch.jit.trace */                                                                    \
    X(TRANSFORM)             /* a transform of torch.func */                                                          \
    X(SAVED_TENSOR_HOOKS)    /* a pair of hooks on tensors saved for backward */                                      \
    X(NO_SAVED_TENSOR_HOOKS) /* such hooks are forbidden */                                                           \
    X(INFERENCE_MODE)

typedef enum {
#define X(name) MODE_##name,
    FOR_EACH_MODE(X)
#undef X
        MODE_COUNT
} Mode;

/* Those bits of `wanted` that are active in this thread; modes_find() has found each. */
unsigned modes_active(unsigned wanted);

PyObject *modes_find(PyObject *module, PyObject *args);
PyObject *modes_read(PyObject *module, PyObject *unused);
PyObject *mode_names(void);

#endif
