/* Tensors without torch's headers: the stable C shim looked up at run time, and offsets found by probing.
 *
 * A tensor's Python object holds an at::Tensor, whose first word points to its TensorImpl: `tensor._cdata`. The word's
 * offset is where that value stands in every probe; the dispatch keys' offset in the TensorImpl is where
 * `_dispatch_keys(tensor).raw_repr()` stands in every probe, the storage's where `untyped_storage()._cdata` does. What is
 * not found, or found twice, turns this off and tensors are checked by the Python reference.
 */

#include "tensors/torch_layout.h"

#include "tensors/tensors.h"
#include "tensors/torch_shim.h"
#ifndef _WIN32
#include <dlfcn.h>
#endif

#define IMPL_LIMIT 208 /* torch asserts sizeof(TensorImpl) is at most this; its last word is the dispatch keys */


int tensors_ready(void)
{
    return shim.ready;
}

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
    shim.keys_offset = find_in_impl(probes, 2, METADATA_START);
    if (shim.keys_offset == 0) {
        return "the dispatch keys were not found at one place in all probed tensors";
    }
    shim.storage_field = find_in_impl(probes, 4, sizeof(void *));
    if (shim.storage_field == 0) {
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

/* tensors_probe(tensor) -> (dtype, device type, device index, keys, metadata), as numbers of the shim, and bytes */
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
    const char *metadata = impl_of(tensor) + METADATA_START;
    return Py_BuildValue("iiiKy#", (int)dtype, (int)device_type, (int)device_index,
                         (unsigned long long)keys_of(tensor), metadata, shim.keys_offset + 8 - METADATA_START);
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

/* tensors_use_bytes(bool): whether metadata bytes were seen to change with everything that a spec compares */
PyObject *tensors_use_bytes(PyObject *module, PyObject *usable)
{
    metadata_bytes_use(shim.ready && usable == Py_True);
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
