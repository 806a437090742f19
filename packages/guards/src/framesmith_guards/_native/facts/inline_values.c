/* Attribute values inside an instance (CPython 3.13): stores there notify no watcher of the instance's dict.
 *
 * Such an instance is unchanged if all its values' addresses are; what an address names must be proved by other means
 * (a tag, or a reference). An image is valid as long as the owner is alive and of the same type.
 */

#include "facts/inline_values.h"
#include <string.h>

#if PY_VERSION_HEX < 0x030D0000

int has_inline_values(PyObject *owner)
{
    return 0;
}

InlineImage *inline_image(PyObject *owner)
{
    return NULL;
}

int inline_unchanged(const InlineImage *image, PyObject *owner)
{
    return 0;
}

void inline_release(InlineImage *image)
{
}

#else

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include "internal/pycore_dict.h"
#include "internal/pycore_object.h"

struct InlineImage {
    size_t bytes;
    char copy[];
};

int has_inline_values(PyObject *owner)
{
    return PyType_HasFeature(Py_TYPE(owner), Py_TPFLAGS_INLINE_VALUES) && _PyObject_InlineValues(owner)->valid;
}

InlineImage *inline_image(PyObject *owner)
{
    PyDictValues *values = _PyObject_InlineValues(owner);
    size_t bytes = offsetof(PyDictValues, values) + values->capacity * sizeof(PyObject *);
    InlineImage *image = PyMem_Malloc(sizeof *image + bytes);
    if (image != NULL) {
        image->bytes = bytes;
        memcpy(image->copy, values, bytes);
    }
    return image;
}

int inline_unchanged(const InlineImage *image, PyObject *owner)
{
    return memcmp(image->copy, _PyObject_InlineValues(owner), image->bytes) == 0;
}

void inline_release(InlineImage *image)
{
    PyMem_Free(image);
}

#endif
