/* Attribute values inside an instance (CPython 3.13): stores there notify no watcher of the instance's dict.
 *
 * Such an instance is unchanged if all its values' addresses are; what an address names must be proved by other means
 * (a tag, or a reference). An image is valid as long as the owner is alive and of the same type.
 */

#include "facts/inline_values.h"

#include "compat.h"
#include <string.h>

struct InlineImage {
    size_t bytes;
    char copy[];
};

int has_inline_values(PyObject *owner)
{
    size_t bytes;
    return unwatched_values(owner, &bytes) != NULL;
}

int is_of_inline_values(PyObject *dict)
{
    return has_unwatched_values(dict);
}

/* NULL without inline values, or without memory. */
InlineImage *inline_image(PyObject *owner)
{
    size_t bytes;
    const char *values = unwatched_values(owner, &bytes);
    InlineImage *image = values == NULL ? NULL : PyMem_Malloc(sizeof *image + bytes);
    if (image != NULL) {
        image->bytes = bytes;
        memcpy(image->copy, values, bytes);
    }
    return image;
}

int inline_unchanged(const InlineImage *image, PyObject *owner)
{
    size_t bytes;
    const char *values = unwatched_values(owner, &bytes);
    return values != NULL && memcmp(image->copy, values, image->bytes) == 0;
}

void inline_release(InlineImage *image)
{
    PyMem_Free(image);
}
