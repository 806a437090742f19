/* Tensors without torch's headers: the stable C shim looked up at run time, and offsets found by probing.
 *
 * A tensor's Python object holds an at::Tensor, whose first word points to its TensorImpl: `tensor._cdata`. The word's
 * offset is where that value stands in every probe; the dispatch keys' offset in the TensorImpl is where
 * `_dispatch_keys(tensor).raw_repr()` stands in every probe, the storage's where `untyped_storage()._cdata` does. What is
 * not found, or found twice, turns this off and tensors are checked by the Python reference.
 */

#include "program.h"
#include <string.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

#define IMAGE_START 24  /* past the vtable and the reference counts, which change */
#define IMPL_LIMIT 208  /* torch asserts sizeof(TensorImpl) is at most this; its last word is the dispatch keys */
#define INLINE_DIMS 5   /* sizes and strides of more dimensions are not inside the TensorImpl */

typedef void *Handle;
typedef int32_t (*GetInt32)(Handle, int32_t *);
typedef int32_t (*GetInt64)(Handle, int64_t *);
typedef int32_t (*GetInts)(Handle, int64_t **);
typedef int32_t (*GetAddress)(Handle, void **);
typedef size_t (*ElementSize)(int32_t);
typedef _Bool (*GradMethod)(const void *);

static struct {
    int ready;
    Py_ssize_t handle_offset, keys_offset, storage_place;
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
} shim;

int tensors_ready(void)
{
    return shim.ready;
}

static Handle handle_of(PyObject *tensor)
{
    return (char *)tensor + shim.handle_offset;
}

static const char *impl_of(PyObject *tensor)
{
    return *(const char *const *)handle_of(tensor);
}

static uint64_t word_at(const char *memory, Py_ssize_t offset)
{
    uint64_t word;
    memcpy(&word, memory + offset, sizeof word);
    return word;
}

static uint64_t keys_of(PyObject *tensor)
{
    return word_at(impl_of(tensor), shim.keys_offset);
}

/* Torch's own method, if it was found and agrees; else the attribute, which may run a torch-function mode. */
static int requires_grad_of(PyObject *tensor)
{
    if (shim.grad_method != NULL) {
        return shim.grad_method(impl_of(tensor));
    }
    PyObject *answer = shim.requires_grad(tensor, shim.requires_grad_closure);
    if (answer == NULL) {
        return -1;
    }
    int value = answer == Py_True;
    Py_DECREF(answer);
    return value;
}

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

static int same_shape(const TensorLeaf *leaf, Handle handle)
{
    int64_t dim, *sizes, *strides;
    return shim.dim(handle, &dim) == 0 && dim == leaf->dim && shim.sizes(handle, &sizes) == 0 &&
           same_numbers(sizes, leaf->sizes, dim) && shim.strides(handle, &strides) == 0 &&
           same_numbers(strides, leaf->sizes + dim, dim);
}

int tensor_matches(const TensorLeaf *leaf, PyObject *tensor)
{
    int32_t dtype, device_type, device_index;
    if (Py_TYPE(tensor) != leaf->type || keys_of(tensor) != leaf->keys) {
        return 0;
    }
    Handle handle = handle_of(tensor);
    if (shim.dtype(handle, &dtype) != 0 || dtype != leaf->dtype || !same_shape(leaf, handle) ||
        shim.device_type(handle, &device_type) != 0 || device_type != leaf->device_type ||
        shim.device_index(handle, &device_index) != 0 || device_index != leaf->device_index) {
        return 0;
    }
    int requires_grad = requires_grad_of(tensor);
    return requires_grad < 0 ? -1 : requires_grad == leaf->requires_grad;
}

/* Only for tensors that a leaf has checked in the same run: strided, with sizes that are numbers. */
int tensor_number(PyObject *tensor, int property, Py_ssize_t dim, int64_t *out)
{
    Handle handle = handle_of(tensor);
    int64_t count, *numbers;
    if (property == 2) {
        return shim.storage_offset(handle, out) == 0;
    }
    if (shim.dim(handle, &count) != 0 || dim < 0 || dim >= count ||
        (property == 0 ? shim.sizes : shim.strides)(handle, &numbers) != 0) {
        return 0;
    }
    *out = numbers[dim];
    return 1;
}

/* Only for tensors that leaves have checked in the same run: strided ones. */
int tensors_share_storage(PyObject *a, PyObject *b)
{
    return word_at(impl_of(a), shim.storage_place) == word_at(impl_of(b), shim.storage_place);
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

int tensors_are_apart(const int *operands, Py_ssize_t count, PyObject **registers)
{
    uintptr_t start, end, other_start, other_end;
    if (extent_of(registers[operands[0]], &start, &end) < 0) {
        return -1;
    }
    int apart = 1;
    for (Py_ssize_t k = 1; apart && k < count; k++) {
        if (extent_of(registers[operands[k]], &other_start, &other_end) < 0) {
            return -1;
        }
        apart = start == end || other_start == other_end || end <= other_start || other_end <= start;
    }
    return apart;
}

/* ---- torch functions: what reads tensors through Python's protocols runs the code of modes and subclasses ---- */

static int is_tensor_type(PyObject *value)
{
    return value != NULL && PyType_IsSubtype(Py_TYPE(value), shim.base);
}

/* Whether an instruction may run torch-function code now: shim and offsets never do. */
int tensor_touched_by(const Instruction *i, PyObject **registers)
{
    if (shim.base == NULL) { /* tensors were never looked at natively: it cannot be told */
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
        return is_tensor_type(registers[i->a]);
    case OP_HAS_KEY:
    case OP_HAS_NO_KEY:
        return !PyDict_CheckExact(registers[i->a]); /* a tuple compares its elements */
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

/* ---- images: a TensorImpl's bytes, equal only if nothing that a leaf compares (but requires_grad) changed ---- */

static int images_usable;

size_t tensor_image_size(void)
{
    return images_usable ? (size_t)(shim.keys_offset + 8 - IMAGE_START) : 0;
}

void tensor_image(PyObject *tensor, char *out)
{
    memcpy(out, impl_of(tensor) + IMAGE_START, tensor_image_size());
}

int tensor_unchanged(const TensorLeaf *leaf, PyObject *tensor, const char *image)
{
    if (!images_usable || leaf->dim > INLINE_DIMS) {
        return tensor_matches(leaf, tensor);
    }
    if (Py_TYPE(tensor) != leaf->type || !same_words(impl_of(tensor) + IMAGE_START, image, tensor_image_size())) {
        return 0;
    }
    int requires_grad = requires_grad_of(tensor);
    return requires_grad < 0 ? -1 : requires_grad == leaf->requires_grad;
}

/* ---- setting up: find the shim and the offsets ---- */

static int find_symbols(const char *path)
{
#ifdef _WIN32
    return 0;
#else
    shim.library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (shim.library == NULL) {
        return 0;
    }
    struct {
        const char *name;
        void **slot;
    } wanted[] = {
        {"aoti_torch_get_dtype", (void **)&shim.dtype},
        {"aoti_torch_get_device_type", (void **)&shim.device_type},
        {"aoti_torch_get_device_index", (void **)&shim.device_index},
        {"aoti_torch_get_dim", (void **)&shim.dim},
        {"aoti_torch_get_storage_offset", (void **)&shim.storage_offset},
        {"aoti_torch_get_sizes", (void **)&shim.sizes},
        {"aoti_torch_get_strides", (void **)&shim.strides},
        {"aoti_torch_get_data_ptr", (void **)&shim.data},
        {"aoti_torch_dtype_element_size", (void **)&shim.element_size},
    };
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        *wanted[k].slot = dlsym(shim.library, wanted[k].name);
        if (*wanted[k].slot == NULL) {
            return 0;
        }
    }
    return 1;
#endif
}

/* A probe is (tensor, _cdata, raw dispatch keys, sizes as a tuple of ints, its storage's _cdata, its data_ptr). */
static uint64_t probe_number(PyObject *probes, Py_ssize_t k, Py_ssize_t field)
{
    return PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, k), field));
}

static PyObject *probe_tensor(PyObject *probes, Py_ssize_t k)
{
    return PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, k), 0);
}

static int find_handle(PyObject *probes)
{
    Py_ssize_t matches = 0;
    for (Py_ssize_t offset = sizeof(PyObject); offset + 8 <= shim.base->tp_basicsize; offset += 8) {
        int all = 1;
        for (Py_ssize_t k = 0; all && k < PyTuple_GET_SIZE(probes); k++) {
            all = word_at((const char *)probe_tensor(probes, k), offset) == probe_number(probes, k, 1);
        }
        if (all) {
            shim.handle_offset = offset;
            matches++;
        }
    }
    return matches == 1;
}

/* The first offset in the TensorImpl at which every probe has its field, or 0 if there is none: only then, and only
 * where a TensorImpl is smaller than IMPL_LIMIT, a few bytes past it are looked at, once.
 */
#ifdef __GNUC__
__attribute__((no_sanitize_address))
#endif
static Py_ssize_t find_in_impl(PyObject *probes, Py_ssize_t field, Py_ssize_t first)
{
    for (Py_ssize_t offset = first; offset + 8 <= IMPL_LIMIT; offset += 8) {
        int all = 1;
        for (Py_ssize_t k = 0; all && k < PyTuple_GET_SIZE(probes); k++) {
            const uint64_t *words = (const uint64_t *)impl_of(probe_tensor(probes, k));
            all = words[offset / 8] == probe_number(probes, k, field);
        }
        if (all) {
            return offset;
        }
    }
    return 0;
}

static int shim_agrees(PyObject *probes)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(probes); k++) {
        PyObject *sizes = PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, k), 3);
        Handle handle = handle_of(probe_tensor(probes, k));
        int64_t dim, *found;
        void *data;
        if (shim.dim(handle, &dim) != 0 || dim != PyTuple_GET_SIZE(sizes) || shim.sizes(handle, &found) != 0 ||
            shim.data(handle, &data) != 0 || (uint64_t)(uintptr_t)data != probe_number(probes, k, 5)) {
            return 0;
        }
        for (int64_t d = 0; d < dim; d++) {
            if (found[d] != PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, d))) {
                return 0;
            }
        }
    }
    return 1;
}

static const char *why_not(const char *path, PyObject *probes)
{
    if (!find_symbols(path)) {
        return "torch's stable C shim was not found in the libraries that are loaded";
    }
    if (PyTuple_GET_SIZE(probes) < 3 || !find_handle(probes)) {
        return "the tensor handle was not found at one place in all probed tensors";
    }
    if (!shim_agrees(probes)) {
        return "torch's C shim and Python disagree about probed tensors";
    }
    shim.keys_offset = find_in_impl(probes, 2, IMAGE_START);
    if (shim.keys_offset == 0) {
        return "the dispatch keys were not found at one place in all probed tensors";
    }
    shim.storage_place = find_in_impl(probes, 4, sizeof(void *));
    if (shim.storage_place == 0) {
        return "the storage was not found at one place in all probed tensors";
    }
    return NULL;
}

/* tensors_setup(library path, TensorBase, requires_grad's descriptor, probes) -> None, or why tensors stay slow */
PyObject *tensors_setup(PyObject *module, PyObject *args)
{
    const char *path;
    PyTypeObject *base;
    PyObject *descriptor, *probes;
    if (!PyArg_ParseTuple(args, "sO!O!O!:tensors_setup", &path, &PyType_Type, &base, &PyGetSetDescr_Type, &descriptor,
                          &PyTuple_Type, &probes)) {
        return NULL;
    }
    shim.ready = 0;
    shim.grad_method = NULL;
    shim.base = (PyTypeObject *)Py_NewRef(base);
    PyGetSetDef *definition = ((PyGetSetDescrObject *)descriptor)->d_getset;
    shim.requires_grad = definition->get;
    shim.requires_grad_closure = definition->closure;
    Py_INCREF(descriptor);
    const char *reason = why_not(path, probes);
    if (reason != NULL) {
        return PyUnicode_FromString(reason);
    }
    shim.ready = 1;
    Py_RETURN_NONE;
}

static int is_tensor(PyObject *value)
{
    if (!shim.ready) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor layout of this torch is not known");
        return 0;
    }
    if (!PyObject_TypeCheck(value, shim.base)) {
        PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(value)->tp_name);
        return 0;
    }
    return 1;
}

/* tensors_probe(tensor) -> (dtype, device type, device index, keys, image), as numbers of the shim, and bytes */
PyObject *tensors_probe(PyObject *module, PyObject *tensor)
{
    int32_t dtype, device_type, device_index;
    if (!is_tensor(tensor)) {
        return NULL;
    }
    Handle handle = handle_of(tensor);
    if (shim.dtype(handle, &dtype) != 0 || shim.device_type(handle, &device_type) != 0 ||
        shim.device_index(handle, &device_index) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim failed on a tensor");
        return NULL;
    }
    const char *image = impl_of(tensor) + IMAGE_START;
    return Py_BuildValue("iiiKy#", (int)dtype, (int)device_type, (int)device_index,
                         (unsigned long long)keys_of(tensor), image, shim.keys_offset + 8 - IMAGE_START);
}

/* tensors_find_grad(tensor...) -> whether torch's own method was found and says what the attribute says of these. */
PyObject *tensors_find_grad(PyObject *module, PyObject *tensors)
{
#ifndef _WIN32
    /* c10::TensorImpl::requires_grad() const: exported by every torch so far, but promised by none. */
    GradMethod method = shim.ready ? (GradMethod)dlsym(shim.library, "_ZNK3c1010TensorImpl13requires_gradEv") : NULL;
#else
    GradMethod method = NULL;
#endif
    int agrees = method != NULL;
    shim.grad_method = NULL;
    for (Py_ssize_t k = 0; agrees && k < PyTuple_GET_SIZE(tensors); k++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, k);
        int value = is_tensor(tensor) ? requires_grad_of(tensor) : -1;
        if (value < 0) {
            return NULL;
        }
        agrees = method(impl_of(tensor)) == value;
    }
    shim.grad_method = agrees ? method : NULL;
    return PyBool_FromLong(agrees);
}

PyObject *tensors_requires_grad(PyObject *module, PyObject *tensor)
{
    int value = is_tensor(tensor) ? requires_grad_of(tensor) : -1;
    return value < 0 ? NULL : PyBool_FromLong(value);
}

/* use_images(bool): whether images were seen to change with everything that a leaf compares */
PyObject *tensors_use_images(PyObject *module, PyObject *usable)
{
    images_usable = shim.ready && usable == Py_True;
    Py_RETURN_NONE;
}

/* tensors_device_type(name) -> the shim's number of a device type, or None */
PyObject *tensors_device_type(PyObject *module, PyObject *name)
{
#ifndef _WIN32
    char symbol[96];
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        return NULL;
    }
    snprintf(symbol, sizeof symbol, "aoti_torch_device_type_%s", text);
    int32_t (*number)(void) = shim.library == NULL ? NULL : (int32_t(*)(void))dlsym(shim.library, symbol);
    if (number != NULL) {
        return PyLong_FromLong(number());
    }
#endif
    Py_RETURN_NONE;
}
