/* The cache of a callback: its own, dropped when the callback dies.
 *
 * The collector does not see what a code object's co_extra holds, and a callback usually holds functions and so their code:
 * a strong reference would leak the cycle. Callbacks are identified by their address and a weak reference. Each attribute
 * look-up makes a new bound method, so methods are identified by the addresses of their object and function. */

#include "data/owner.h"

#include "data/code_state.h"
#include "data/interest.h"

enum { SHARED_CACHE = 0 };

static PyObject *owners = NULL; /* dict: key -> (weak reference, cache id) */
static unsigned long long last_id = SHARED_CACHE;

/* With self = (key, id). */
static PyObject *owner_died(PyObject *self, PyObject *reference)
{
    PyObject *key = PyTuple_GET_ITEM(self, 0);
    PyObject *known = PyDict_GetItemWithError(owners, key);
    if (known != NULL && PyTuple_GET_ITEM(known, 0) == reference && PyDict_DelItem(owners, key) < 0) {
        return NULL;
    }
    unsigned long long id = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(self, 1));
    interest_forget(id);
    if (reset_caches(NULL, &id) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef owner_died_method = {"owner_died", owner_died, METH_O, NULL};

static PyObject *owner_key(PyObject *callback)
{
    if (PyMethod_Check(callback)) {
        return Py_BuildValue("NN", PyLong_FromVoidPtr(PyMethod_GET_SELF(callback)),
                             PyLong_FromVoidPtr(PyMethod_GET_FUNCTION(callback)));
    }
    return PyLong_FromVoidPtr(callback);
}

static int remember(PyObject *owner, PyObject *key, unsigned long long id)
{
    PyObject *context = Py_BuildValue("OK", key, id);
    PyObject *died = context == NULL ? NULL : PyCFunction_New(&owner_died_method, context);
    PyObject *reference = died == NULL ? NULL : PyWeakref_NewRef(owner, died);
    PyObject *value = reference == NULL ? NULL : Py_BuildValue("OK", reference, id);
    int status = value == NULL ? -1 : PyDict_SetItem(owners, key, value);
    Py_XDECREF(context);
    Py_XDECREF(died);
    Py_XDECREF(reference);
    Py_XDECREF(value);
    return status;
}

/* The id stored under this key, if the object at this address is still the same one. */
static int recall(PyObject *owner, PyObject *key, unsigned long long *id)
{
    PyObject *known = PyDict_GetItemWithError(owners, key);
    if (known == NULL || !weakref_refers_to(PyTuple_GET_ITEM(known, 0), owner)) {
        return 0;
    }
    *id = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(known, 1));
    return 1;
}

int callback_cache(PyObject *callback, unsigned long long *id)
{
    if (owners == NULL && (owners = PyDict_New()) == NULL) {
        return -1;
    }
    PyObject *owner = PyMethod_Check(callback) ? PyMethod_GET_SELF(callback) : callback;
    PyObject *key = owner_key(callback);
    if (key == NULL) {
        return -1;
    }
    int status = 0;
    if (!recall(owner, key, id)) {
        *id = ++last_id;
        status = remember(owner, key, *id);
    }
    Py_DECREF(key);
    if (status < 0 && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* it takes no weak references */
        *id = SHARED_CACHE;
        status = 0;
    }
    return status;
}

unsigned long long new_cache_id(void) { return ++last_id; }
