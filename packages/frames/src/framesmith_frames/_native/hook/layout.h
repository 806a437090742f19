/* Whether frames of the running interpreter are laid out as those of the one that the extension was built for. */
#ifndef FRAMESMITH_LAYOUT_H
#define FRAMESMITH_LAYOUT_H

#include "compat.h"

/* A list of (field, built, running): sizes and offsets in bytes. Empty where the interpreter does not report them. */
PyObject *frame_layout(PyObject *module, PyObject *unused);

/* None, or ImportError for the first item of such a list whose values differ. */
PyObject *check_frame_layout(PyObject *module, PyObject *layout);

/* 0, or -1 with ImportError. */
int layout_init(void);

#endif
