/* Classes that have not changed: CPython gives each state of a class and its bases a version, never the same twice.
 *
 * Any change of a class's entries or bases, or of those of one of its bases, takes the version away; the next attribute
 * lookup gives a new one. A class without a version (it changed too often) is compared in full each time.
 */

#include "facts/classes.h"

#include "compat.h"

/* The version of a class, which will name its state and that of its bases for ever: given one now if it has none; 0 if
 * it gets none.
 */
uint32_t class_version(PyTypeObject *type)
{
    if (type_version(type) == 0) {
        assign_type_version(type);
    }
    return type_version(type);
}

int class_unchanged(PyTypeObject *type, uint64_t version)
{
    return type_version(type) == version;
}

/* The version is read before the comparison and must still be there after it: other threads may change classes. */
int class_holds(const Instruction *i, PyObject *value)
{
    PyTypeObject *type = PyType_Check(value) ? (PyTypeObject *)value : NULL;
    if (type != NULL && *i->version != 0 && type_version(type) == *i->version) {
        return 1;
    }
    uint32_t before = type == NULL ? 0 : class_version(type);
    PyObject *answer = PyObject_CallOneArg(i->obj, value);
    int status = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (status == 1 && before != 0 && type_version(type) == before) {
        *i->version = before;
    }
    return status;
}

/* ---- abstract classes: what they register changes which classes are their subclasses ---- */

/* The count of classes that abstract classes have registered so far, plus one; 0 if unknown. */
static uint64_t registrations(void)
{
    static PyObject *token; /* _abc.get_cache_token: lives as long as the interpreter */
    if (token == NULL) {
        PyObject *module = PyImport_ImportModule("_abc");
        token = module == NULL ? NULL : PyObject_GetAttrString(module, "get_cache_token");
        Py_XDECREF(module);
    }
    PyObject *number = token == NULL ? NULL : PyObject_CallNoArgs(token);
    uint64_t found = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number) + 1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return found;
}

/* Known by the class's version, not its address: another class may come to be there. */
int registrations_hold(const Instruction *i, PyObject *value)
{
    uint64_t before = registrations();
    uint64_t version = PyType_Check(value) ? class_version((PyTypeObject *)value) : 0;
    int known = before != 0 && version != 0;
    if (known && i->version[0] == before && i->version[1] == version) {
        return 1;
    }
    PyObject *answer = PyObject_CallOneArg(i->obj, value);
    int status = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (status == 1 && known) {
        i->version[0] = before;
        i->version[1] = version;
    }
    return status;
}
