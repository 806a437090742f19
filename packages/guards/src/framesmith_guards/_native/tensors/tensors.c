/* Tensors against what is expected of them, by torch's stable C shim and by offsets (torch_shim.h): runs no Python, but
 * for requires_grad where torch's own method was not found.
 */

#include "tensors/tensors.h"

#include "tensors/torch_shim.h"

#define INLINE_DIMS 5 /* sizes and strides of more dimensions are not inside the TensorImpl */

/* ---- checking ---- */

static int same_numbers(const int64_t *found, const int64_t *expected, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        if (found[k] != expected[k] && expected[k] != ANY_SIZE) {
            return 0;
        }
    }
    return 1;
}

static int same_shape(const TensorSpec *spec, Handle handle)
{
    int64_t dim, *sizes, *strides;
    return shim.dim(handle, &dim) == 0 && dim == spec->dim && shim.sizes(handle, &sizes) == 0 &&
           same_numbers(sizes, spec->sizes, dim) && shim.strides(handle, &strides) == 0 &&
           same_numbers(strides, spec->sizes + dim, dim);
}

int tensor_matches(const TensorSpec *spec, PyObject *tensor)
{
    int32_t dtype, device_type, device_index;
    if (Py_TYPE(tensor) != spec->type || keys_of(tensor) != spec->keys) {
        return 0;
    }
    Handle handle = handle_of(tensor);
    if (shim.dtype(handle, &dtype) != 0 || dtype != spec->dtype || !same_shape(spec, handle) ||
        shim.device_type(handle, &device_type) != 0 || device_type != spec->device_type ||
        shim.device_index(handle, &device_index) != 0 || device_index != spec->device_index) {
        return 0;
    }
    int requires_grad = requires_grad_of(tensor);
    return requires_grad < 0 ? -1 : requires_grad == spec->requires_grad;
}

/* Only for tensors that a spec has checked in the same run: strided, with sizes that are numbers. */
int tensor_number(PyObject *tensor, TensorProperty property, Py_ssize_t dim, int64_t *out)
{
    Handle handle = handle_of(tensor);
    int64_t count, *numbers;
    if (property == PROPERTY_STORAGE_OFFSET) {
        return shim.storage_offset(handle, out) == 0;
    }
    if (shim.dim(handle, &count) != 0 || dim < 0 || dim >= count ||
        (property == PROPERTY_SIZE ? shim.sizes : shim.strides)(handle, &numbers) != 0) {
        return 0;
    }
    *out = numbers[dim];
    return 1;
}

/* Only for tensors that specs have checked in the same run: strided ones. */
int tensors_share_storage(PyObject *a, PyObject *b)
{
    return word_at(impl_of(a), shim.storage_field) == word_at(impl_of(b), shim.storage_field);
}

/* The bytes from the first to past the last element; none for a tensor without elements or memory. */
static int extent_of(PyObject *tensor, uintptr_t *start, uintptr_t *end)
{
    Handle handle = handle_of(tensor);
    int64_t dim, *sizes, *strides, last = 0;
    int32_t dtype;
    void *data;
    if (shim.dim(handle, &dim) != 0 || shim.sizes(handle, &sizes) != 0 || shim.strides(handle, &strides) != 0 ||
        shim.dtype(handle, &dtype) != 0 || shim.data(handle, &data) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim failed on a tensor");
        return -1;
    }
    *start = *end = (uintptr_t)data;
    for (int64_t k = 0; k < dim; k++) {
        if (sizes[k] == 0) {
            return 1;
        }
        last += (sizes[k] - 1) * strides[k];
    }
    if (data != NULL) {
        *end += (uintptr_t)(last + 1) * shim.element_size(dtype);
    }
    return 1;
}

int tensors_are_disjoint(const int *operands, Py_ssize_t count, PyObject **registers)
{
    uintptr_t start, end, other_start, other_end;
    if (extent_of(registers[operands[0]], &start, &end) < 0) {
        return -1;
    }
    int disjoint = 1;
    for (Py_ssize_t k = 1; disjoint && k < count; k++) {
        if (extent_of(registers[operands[k]], &other_start, &other_end) < 0) {
            return -1;
        }
        disjoint = start == end || other_start == other_end || end <= other_start || other_end <= start;
    }
    return disjoint;
}

typedef struct {
    uintptr_t start, end;
    int operand;
} Extent;

/* By where they start; those without bytes first. */
static int compare_starts(const void *a, const void *b)
{
    const Extent *x = a, *y = b;
    int x_empty = x->start == x->end, y_empty = y->start == y->end;
    return x_empty != y_empty ? y_empty - x_empty : (x->start > y->start) - (x->start < y->start);
}

static int in_order_and_disjoint(const Extent *extents, Py_ssize_t count)
{
    uintptr_t end = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        if (extents[k].start != extents[k].end) {
            if (extents[k].start < end) {
                return 0;
            }
            end = extents[k].end;
        }
    }
    return 1;
}

/* The operands are left in the order of their memory, which the next run will often find as they are. */
int tensors_are_all_disjoint(int *operands, Py_ssize_t count, PyObject **registers)
{
    Extent *extents = PyMem_Malloc((size_t)count * sizeof *extents);
    if (extents == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int disjoint = 1;
    for (Py_ssize_t k = 0; disjoint > 0 && k < count; k++) {
        disjoint = extent_of(registers[operands[k]], &extents[k].start, &extents[k].end);
        extents[k].operand = operands[k];
    }
    if (disjoint > 0 && !in_order_and_disjoint(extents, count)) {
        qsort(extents, (size_t)count, sizeof *extents, compare_starts);
        for (Py_ssize_t k = 0; k < count; k++) {
            operands[k] = extents[k].operand;
        }
        disjoint = in_order_and_disjoint(extents, count);
    }
    PyMem_Free(extents);
    return disjoint;
}

/* ---- torch functions: what reads tensors through Python's protocols runs the code of modes and subclasses ---- */

static int is_tensor_type(PyObject *value)
{
    return value != NULL && PyType_IsSubtype(Py_TYPE(value), shim.base);
}

/* Whether an instruction may run torch-function code now: shim and offsets never do. */
int tensor_touched_by(const Instruction *i, PyObject **registers)
{
    if (shim.base == NULL) { /* tensors were never looked at natively: it is unknown */
        return i->op != OP_RUN_BLOCK;
    }
    switch (i->op) {
    case OP_LOAD_ATTR:
    case OP_LOAD_DICT:
    case OP_LOAD_ITEM:
    case OP_LOAD_CALL:
    case OP_HAS_LENGTH:
    case OP_HAS_ATTR:
    case OP_HAS_NO_ATTR:
    case OP_HAS_CODE:
    case OP_IS_PLAIN_LEAF:
        return is_tensor_type(registers[i->a]);
    case OP_HAS_KEY:
    case OP_HAS_NO_KEY:
        return !PyDict_Check(registers[i->a]); /* a tuple compares its elements */
    case OP_IS_TENSOR:
        return shim.grad_method == NULL && is_tensor_type(registers[i->a]);
    case OP_RUN_BLOCK:
        return shim.grad_method == NULL;
    case OP_HAS_SHAPE:
        return 0; /* its reference disables torch functions itself */
    case OP_CALL_CHECK:
        for (Py_ssize_t k = 0; k < i->n; k++) {
            if (i->operands[k] >= 0 && is_tensor_type(registers[i->operands[k]])) {
                return 1;
            }
        }
        return 0;
    default:
        return 0;
    }
}

static int same_words(const char *a, const char *b, size_t bytes)
{
    uint64_t difference = 0;
    for (size_t k = 0; k < bytes; k += 8) {
        difference |= word_at(a, (Py_ssize_t)k) ^ word_at(b, (Py_ssize_t)k);
    }
    return difference == 0;
}

/* ---- metadata bytes: a TensorImpl's, equal only if nothing that a spec compares (but requires_grad) changed ---- */

static int metadata_bytes_usable;

void metadata_bytes_use(int usable)
{
    metadata_bytes_usable = usable;
}

size_t tensor_metadata_size(void)
{
    return metadata_bytes_usable ? (size_t)(shim.keys_offset + 8 - METADATA_START) : 0;
}

void copy_tensor_metadata(PyObject *tensor, char *out)
{
    memcpy(out, impl_of(tensor) + METADATA_START, tensor_metadata_size());
}

int tensor_unchanged(const TensorSpec *spec, PyObject *tensor, const char *metadata)
{
    if (!metadata_bytes_usable || spec->dim > INLINE_DIMS) {
        return tensor_matches(spec, tensor);
    }
    const char *found = impl_of(tensor) + METADATA_START;
    if (Py_TYPE(tensor) != spec->type || !same_words(found, metadata, tensor_metadata_size())) {
        return 0;
    }
    int requires_grad = requires_grad_of(tensor);
    return requires_grad < 0 ? -1 : requires_grad == spec->requires_grad;
}
