/* Torch's global state: modes, a snapshot and a few reads, or the full comparison. */

#include "facts/state.h"

static int quickly_the_same(StateCheck *state)
{
    PyObject *snapshot = Py_NewRef(state->snapshot);
    PyObject *answer = PyObject_CallNoArgs(snapshot);
    Py_DECREF(snapshot);
    int same = answer == Py_True;
    Py_XDECREF(answer);
    for (Py_ssize_t k = 0; same == 1 && k < PyTuple_GET_SIZE(state->rows); k++) {
        PyObject *row = PyTuple_GET_ITEM(state->rows, k);
        PyObject *value = PyObject_CallNoArgs(PyTuple_GET_ITEM(row, 0));
        PyObject *expected = PyTuple_GET_ITEM(row, 1);
        same = value != NULL && (value == expected || PyObject_RichCompareBool(value, expected, Py_EQ) == 1);
        Py_XDECREF(value);
    }
    if (!same) {
        PyErr_Clear();
    }
    return same;
}

int state_holds(StateCheck *state, unsigned active)
{
    if (active == 0 && state->snapshot != NULL && quickly_the_same(state)) {
        return 1;
    }
    /* The snapshot is taken before the comparison and must still hold after it: another thread may change defaults. */
    PyObject *snapshot = state->renew == NULL ? NULL : PyObject_CallNoArgs(state->renew);
    if (state->renew != NULL && snapshot == NULL) {
        return -1;
    }
    PyObject *answer = PyObject_CallNoArgs(state->compare);
    int status = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    if (status == 1 && snapshot != NULL) {
        PyObject *still = PyObject_CallNoArgs(snapshot);
        if (still == Py_True) {
            Py_XSETREF(state->snapshot, Py_NewRef(snapshot));
        }
        status = still == NULL ? -1 : 1;
        Py_XDECREF(still);
    }
    Py_XDECREF(snapshot);
    return status;
}
