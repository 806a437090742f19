/* Classes that have not changed, by the version numbers of CPython's type objects. */
#ifndef FRAMESMITH_GUARDS_CLASSES_H
#define FRAMESMITH_GUARDS_CLASSES_H

#include "instruction.h"

uint32_t class_version(PyTypeObject *type);
int class_unchanged(PyTypeObject *type, uint64_t version);
int class_holds(const Instruction *i, PyObject *value);
int registrations_hold(const Instruction *i, PyObject *value);

#endif
