/* Attributes that CPython keeps in the object itself, compared as bytes. */
#ifndef FRAMESMITH_GUARDS_INLINE_VALUES_H
#define FRAMESMITH_GUARDS_INLINE_VALUES_H

#include "instruction.h"

typedef struct InlineImage InlineImage;
int has_inline_values(PyObject *owner);
int is_of_inline_values(PyObject *dict); /* an instance's: stores to the instance change it unnoticed */
InlineImage *inline_image(PyObject *owner);
int inline_unchanged(const InlineImage *image, PyObject *owner);
void inline_release(InlineImage *image);

#endif
