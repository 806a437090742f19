/* Types whose attributes are looked up by interned names. */
#ifndef FRAMESMITH_GUARDS_LOOKUPS_H
#define FRAMESMITH_GUARDS_LOOKUPS_H

#include "instruction.h"

/* interned_lookups(base, names) -> a subclass of `base` that looks these names up as interned ones */
PyObject *interned_lookups(PyObject *module, PyObject *args);

#endif
