/* The differences between CPython 3.11 and 3.15; no other file asks for the version. */
#ifndef FRAMESMITH_GUARDS_COMPAT_H
#define FRAMESMITH_GUARDS_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x03100000
#error "framesmith_guards supports CPython 3.11 to 3.15 only"
#endif
#ifdef Py_GIL_DISABLED
#error "framesmith_guards does not support free-threaded CPython"
#endif

/* Whether each state of a dict has a number of its own (3.11), or watchers are called when one changes. */
#define DICTS_HAVE_VERSIONS (PY_VERSION_HEX < 0x030C0000)

/* Whether this is a dict or a frozendict (3.15). */
static inline int is_dict_or_frozen(PyObject *value)
{
#if PY_VERSION_HEX < 0x030F0000
    return PyDict_Check(value);
#else
    return PyAnyDict_Check(value);
#endif
}

/* Whether a weak reference refers to this living object, which the caller holds. */
static inline int weakref_is_to(PyObject *reference, PyObject *object)
{
#if PY_VERSION_HEX < 0x030D0000
    return PyWeakref_GET_OBJECT(reference) == object && object != Py_None;
#else
    PyObject *found;
    int alive = PyWeakref_GetRef(reference, &found) > 0;
    if (alive) {
        Py_DECREF(found);
    }
    return alive && found == object;
#endif
}

/* The number of a class's state, or 0. */
static inline uint32_t type_version(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return type->tp_version_tag;
}

/* Let a class without a version get one, if it may have one still. Sets no exception. */
static inline void assign_type_version(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030C0000
    PyObject *name = PyUnicode_InternFromString("__init__");
    if (name == NULL) {
        PyErr_Clear();
        return;
    }
    _PyType_Lookup(type, name);
    Py_DECREF(name);
#else
    PyUnstable_Type_AssignVersionTag(type);
#endif
}

/* As `PyObject_GetOptionalAttr` of 3.13: 1, 0 without the attribute, or -1 with an exception. */
static inline int optional_attribute(PyObject *value, PyObject *name, PyObject **attribute)
{
#if PY_VERSION_HEX < 0x030D0000
    return _PyObject_LookupAttr(value, name, attribute);
#else
    return PyObject_GetOptionalAttr(value, name, attribute);
#endif
}

/* Attribute values that stand inside an instance itself, after a few bytes about them, and whose stores call no watcher
 * of the instance's dict (3.13); NULL without.
 */
#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000

#define Py_BUILD_CORE 1
#include "internal/pycore_dict.h"
#include "internal/pycore_object.h"
#undef Py_BUILD_CORE

static inline const char *unwatched_values(PyObject *owner, size_t *bytes)
{
    if (!PyType_HasFeature(Py_TYPE(owner), Py_TPFLAGS_INLINE_VALUES)) {
        return NULL;
    }
    PyDictValues *values = _PyObject_InlineValues(owner);
    *bytes = offsetof(PyDictValues, values) + values->capacity * sizeof(PyObject *);
    return values->valid ? (const char *)values : NULL;
}

/* Whether the dict's values are those of such an instance. */
static inline int has_unwatched_values(PyObject *dict)
{
    const PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    return values != NULL && values->embedded;
}

#else

static inline const char *unwatched_values(PyObject *owner, size_t *bytes) { return NULL; }
static inline int has_unwatched_values(PyObject *dict) { return 0; }

#endif

#endif
