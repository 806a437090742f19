/* Checks of tensors against what is expected of them. Sizes and strides are in elements, images in bytes. */
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
} TensorLeaf;

int tensor_matches(const TensorLeaf *leaf, PyObject *tensor);
int tensors_share_storage(PyObject *a, PyObject *b);
int tensors_are_disjoint(const int *operands, Py_ssize_t count, PyObject **registers);
int tensors_are_all_disjoint(const int *operands, Py_ssize_t count, PyObject **registers);
int tensor_touched_by(const Instruction *i, PyObject **registers);
int tensor_number(PyObject *tensor, int property, Py_ssize_t dim, int64_t *out);
size_t tensor_image_size(void);
void tensor_image(PyObject *tensor, char *out);
int tensor_unchanged(const TensorLeaf *leaf, PyObject *tensor, const char *image);
void images_use(int usable);

#endif
