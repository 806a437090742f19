/* Checks of tensors against what is expected of them. Sizes and strides are in elements, metadata in bytes. */
#ifndef FRAMESMITH_GUARDS_TENSORS_H
#define FRAMESMITH_GUARDS_TENSORS_H

#include "instruction.h"

#define ANY_SIZE INT64_MIN

typedef struct {
    PyTypeObject *type; /* borrowed, compared only */
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    int requires_grad;
    int64_t dim;
    int64_t *sizes; /* dim sizes, then dim strides; ANY_SIZE where open */
} TensorSpec;

/* The properties of an operand of a shape condition; OWN_INT: the register holds no tensor but the int itself. */
#define FOR_EACH_PROPERTY(X) X(SIZE) X(STRIDE) X(STORAGE_OFFSET) X(OWN_INT)

typedef enum {
#define X(name) PROPERTY_##name,
    FOR_EACH_PROPERTY(X)
#undef X
        PROPERTY_COUNT
} TensorProperty;

int tensor_matches(const TensorSpec *spec, PyObject *tensor);
int tensors_share_storage(PyObject *a, PyObject *b);
int tensors_are_disjoint(const int *operands, Py_ssize_t count, PyObject **registers);
int tensors_are_all_disjoint(int *operands, Py_ssize_t count, PyObject **registers);
int tensor_touched_by(const Instruction *i, PyObject **registers);
int tensor_number(PyObject *tensor, TensorProperty property, Py_ssize_t dim, int64_t *out);
size_t tensor_metadata_size(void);
void copy_tensor_metadata(PyObject *tensor, char *out);
int tensor_unchanged(const TensorSpec *spec, PyObject *tensor, const char *metadata);
void metadata_bytes_use(int usable);

#endif
