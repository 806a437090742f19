/* How tensors are read without torch's headers: what was found of torch in this process. Set up by torch_layout.c. */
#ifndef FRAMESMITH_GUARDS_TORCH_SHIM_H
#define FRAMESMITH_GUARDS_TORCH_SHIM_H

#include "instruction.h"
#include <string.h>

#define METADATA_START 24 /* past the vtable and the reference counts, which change */

typedef void *Handle;
typedef int32_t (*GetInt32)(Handle, int32_t *);
typedef int32_t (*GetInt64)(Handle, int64_t *);
typedef int32_t (*GetInts)(Handle, int64_t **);
typedef int32_t (*GetAddress)(Handle, void **);
typedef size_t (*ElementSize)(int32_t);
typedef _Bool (*GradMethod)(const void *);

typedef struct {
    int ready;
    Py_ssize_t handle_offset, keys_offset, storage_field;
    void *library;
    GetInt32 dtype, device_type, device_index;
    GetInt64 dim, storage_offset;
    GetInts sizes, strides;
    GetAddress data;
    ElementSize element_size;
    getter requires_grad;
    void *requires_grad_closure;
    GradMethod grad_method; /* NULL if it was not found */
    PyTypeObject *base; /* torch._C.TensorBase; torch is never unloaded */
} TorchShim;

extern TorchShim shim;

static inline Handle handle_of(PyObject *tensor)
{
    return (char *)tensor + shim.handle_offset;
}

static inline const char *impl_of(PyObject *tensor)
{
    return *(const char *const *)handle_of(tensor);
}

static inline uint64_t word_at(const char *memory, Py_ssize_t offset)
{
    uint64_t word;
    memcpy(&word, memory + offset, sizeof word);
    return word;
}

static inline uint64_t keys_of(PyObject *tensor)
{
    return word_at(impl_of(tensor), shim.keys_offset);
}

/* 1 or 0; -1 with an exception. */
int requires_grad_of(PyObject *tensor);

#endif
