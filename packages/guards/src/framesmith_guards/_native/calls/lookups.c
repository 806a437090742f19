/* Types whose attributes are looked up by interned names.
 *
 * torch asks an autograd function and its nodes for attributes by C strings: each is a new str, and CPython's cache of
 * attributes of classes goes by the address of a name. So every call would walk the bases of the class and of its
 * metaclass, once for each name. Here a known name is replaced by its interned equal: nothing else differs.
 */

#include "calls/lookups.h"

static PyObject *known; /* a dict: str -> its interned equal; never emptied */

static PyObject *get_attribute(PyObject *object, PyObject *name)
{
    getattrofunc generic = PyType_Check(object) ? PyType_Type.tp_getattro : PyObject_GenericGetAttr;
    if (PyUnicode_CheckExact(name) && !PyUnicode_CHECK_INTERNED(name)) {
        PyObject *interned = PyDict_GetItemWithError(known, name);
        if (interned == NULL && PyErr_Occurred()) {
            return NULL;
        }
        name = interned == NULL ? name : interned;
    }
    return generic(object, name);
}

static int learn(PyObject *names)
{
    int status = 0;
    if (known == NULL && (known = PyDict_New()) == NULL) {
        return -1;
    }
    for (Py_ssize_t k = 0; status == 0 && k < PyTuple_GET_SIZE(names); k++) {
        PyObject *name = Py_NewRef(PyTuple_GET_ITEM(names, k));
        if (PyUnicode_CheckExact(name)) {
            PyUnicode_InternInPlace(&name);
            status = PyDict_SetItem(known, name, name);
        } else {
            PyErr_SetString(PyExc_TypeError, "names are str");
            status = -1;
        }
        Py_DECREF(name);
    }
    return status;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Looks some attributes up by interned names."},
    {Py_tp_getattro, get_attribute},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "framesmith_guards._check.InternedLookups",
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

PyObject *interned_lookups(PyObject *module, PyObject *args)
{
    PyTypeObject *base;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "O!O!:interned_lookups", &PyType_Type, &base, &PyTuple_Type, &names)) {
        return NULL;
    }
    if (base->tp_getattro != PyObject_GenericGetAttr && base->tp_getattro != PyType_Type.tp_getattro) {
        PyErr_SetString(PyExc_TypeError, "the type looks up attributes in its own way");
        return NULL;
    }
    return learn(names) < 0 ? NULL : PyType_FromSpecWithBases(&spec, (PyObject *)base);
}
