/* Leaves, by the getters of torch's own attributes; or faster, where probes showed it to be the same: hooks are words of
 * a tensor's Python object, and the other attributes methods that every torch has exported so far, but none promises.
 */

#include "tensors/leaves.h"

#include "tensors/torch_shim.h"
#ifndef _WIN32
#include <dlfcn.h>
#endif

enum { IS_LEAF, FIRST_HOOKS, LAST_HOOKS, GRAD_DTYPE, ATTRIBUTE_COUNT };

typedef struct {
    getter get; /* NULL: this torch has no such attribute */
    void *closure;
    Py_ssize_t offset; /* of hooks, in the Python object; 0: unknown */
} Attribute;

static Attribute attributes[ATTRIBUTE_COUNT];
static _Bool (*is_leaf_method)(Handle);      /* at::TensorBase::is_leaf() const, or NULL */
static uint16_t (*grad_dtype_method)(Handle); /* grad_dtype() const: a number, and in the next byte whether it is one */

static PyObject *value_of(int attribute, PyObject *tensor)
{
    return attributes[attribute].get(tensor, attributes[attribute].closure);
}

/* 1 or 0 for an attribute that is, or is not, that object; -1 with an exception. */
static int is_object(int attribute, PyObject *tensor, PyObject *expected)
{
    PyObject *value = value_of(attribute, tensor);
    int status = value == NULL ? -1 : value == expected;
    Py_XDECREF(value);
    return status;
}

static int is_no_hook(PyObject *hooks)
{
    return hooks == Py_None || (PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0);
}

/* There are none where the attribute is None, or a dict without items, whatever its class says. */
static int has_no_hooks(int attribute, PyObject *tensor)
{
    Py_ssize_t offset = attributes[attribute].offset;
    if (offset != 0) {
        PyObject *hooks = *(PyObject *const *)((const char *)tensor + offset);
        return hooks == NULL || is_no_hook(hooks);
    }
    PyObject *hooks = value_of(attribute, tensor);
    int status = hooks == NULL ? -1 : is_no_hook(hooks);
    Py_XDECREF(hooks);
    return status;
}

static int has_grad_dtype(PyObject *tensor, PyObject *dtype, Py_ssize_t number)
{
    if (attributes[GRAD_DTYPE].get == NULL) { /* it is that of the tensor, which the spec has checked */
        return 1;
    }
    if (grad_dtype_method != NULL) {
        return grad_dtype_method(handle_of(tensor)) == (uint16_t)(1 << 8 | number);
    }
    return is_object(GRAD_DTYPE, tensor, dtype);
}

int is_plain_leaf(PyObject *tensor, PyObject *dtype, Py_ssize_t number)
{
    int status;
    if (attributes[IS_LEAF].get == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the attributes of leaves are not known");
        return -1;
    }
    status = is_leaf_method != NULL ? is_leaf_method(handle_of(tensor)) : is_object(IS_LEAF, tensor, Py_True);
    for (int k = FIRST_HOOKS; status == 1 && k <= LAST_HOOKS; k++) {
        status = has_no_hooks(k, tensor);
    }
    return status == 1 ? has_grad_dtype(tensor, dtype, number) : status;
}

/* ---- setting up ---- */

static int take_descriptors(PyObject *given)
{
    memset(attributes, 0, sizeof attributes);
    if (PyTuple_GET_SIZE(given) != ATTRIBUTE_COUNT) {
        PyErr_SetString(PyExc_TypeError, "leaves have four attributes");
        return -1;
    }
    for (int k = 0; k < ATTRIBUTE_COUNT; k++) {
        PyGetSetDescrObject *descriptor = (PyGetSetDescrObject *)PyTuple_GET_ITEM(given, k);
        if (k == GRAD_DTYPE && (PyObject *)descriptor == Py_None) {
            continue;
        }
        if (!Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) || !shim.ready ||
            !PyType_IsSubtype(shim.base, descriptor->d_common.d_type)) {
            PyErr_SetString(PyExc_TypeError, "an attribute of all tensors is needed");
            memset(attributes, 0, sizeof attributes);
            return -1;
        }
        attributes[k] = (Attribute){descriptor->d_getset->get, descriptor->d_getset->closure, 0};
        Py_INCREF(descriptor); /* torch is never unloaded */
    }
    return 0;
}

/* Where a word is NULL in a tensor without hooks, and in the other the hooks; 0 if there is no one place. */
static Py_ssize_t find_hooks(PyObject *without, PyObject *with, PyObject *hooks)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t at = sizeof(PyObject); at + 8 <= shim.base->tp_basicsize; at += 8) {
        if (word_at((const char *)without, at) == 0 && word_at((const char *)with, at) == (uint64_t)(uintptr_t)hooks) {
            if (found != 0) {
                return 0;
            }
            found = at;
        }
    }
    return found;
}

static int find_all_hooks(PyObject *without, PyObject *with)
{
    for (int k = FIRST_HOOKS; k <= LAST_HOOKS; k++) {
        PyObject *hooks = value_of(k, with);
        if (hooks == NULL) {
            return -1;
        }
        attributes[k].offset = hooks == Py_None ? 0 : find_hooks(without, with, hooks);
        Py_DECREF(hooks);
    }
    return 0;
}

/* 1 if the methods say of a tensor what its attributes say, else 0; -1 with an exception. */
static int methods_agree(PyObject *tensor)
{
    int32_t number;
    int is_leaf = is_object(IS_LEAF, tensor, Py_True);
    if (is_leaf < 0 || (is_leaf_method != NULL && is_leaf_method(handle_of(tensor)) != is_leaf)) {
        return is_leaf < 0 ? -1 : 0;
    }
    if (!is_leaf || grad_dtype_method == NULL || attributes[GRAD_DTYPE].get == NULL) {
        return 1;
    }
    int has_none = is_object(GRAD_DTYPE, tensor, Py_None);
    if (has_none < 0 || shim.dtype(handle_of(tensor), &number) != 0) {
        return has_none < 0 ? -1 : 0;
    }
    uint16_t found = grad_dtype_method(handle_of(tensor));
    return has_none ? found >> 8 == 0 : found == (uint16_t)(1 << 8 | number);
}

static int find_methods(PyObject *probes)
{
#ifndef _WIN32
    is_leaf_method = (_Bool(*)(Handle))dlsym(shim.library, "_ZNK2at10TensorBase7is_leafEv");
    grad_dtype_method = (uint16_t(*)(Handle))dlsym(shim.library, "_ZNK2at10TensorBase10grad_dtypeEv");
#endif
    int agree = 1;
    for (Py_ssize_t k = 0; agree > 0 && k < PyTuple_GET_SIZE(probes); k++) {
        agree = methods_agree(PyTuple_GET_ITEM(probes, k));
    }
    if (agree < 1) {
        is_leaf_method = NULL;
        grad_dtype_method = NULL;
    }
    return agree < 0 ? -1 : 0;
}

PyObject *leaves_setup(PyObject *module, PyObject *args)
{
    PyObject *descriptors, *probes;
    is_leaf_method = NULL;
    grad_dtype_method = NULL;
    if (!PyArg_ParseTuple(args, "O!O!:leaves_setup", &PyTuple_Type, &descriptors, &PyTuple_Type, &probes) ||
        take_descriptors(descriptors) < 0) {
        return NULL;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(probes); k++) {
        if (!PyObject_TypeCheck(PyTuple_GET_ITEM(probes, k), shim.base)) {
            PyErr_SetString(PyExc_TypeError, "probes are tensors");
            return NULL;
        }
    }
    if (PyTuple_GET_SIZE(probes) >= 2 &&
        (find_all_hooks(PyTuple_GET_ITEM(probes, 0), PyTuple_GET_ITEM(probes, 1)) < 0 || find_methods(probes) < 0)) {
        return NULL;
    }
    return Py_BuildValue("(NNNN)", PyBool_FromLong(is_leaf_method != NULL),
                         PyBool_FromLong(attributes[FIRST_HOOKS].offset != 0),
                         PyBool_FromLong(attributes[LAST_HOOKS].offset != 0),
                         PyBool_FromLong(grad_dtype_method != NULL));
}
