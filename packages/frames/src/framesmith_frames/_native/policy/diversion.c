/* The setting is an item of a dict, which may change at any time: each call that could use an entry looks it up, at the cost
 * of one lookup of an interned name. `judge` is called once for each new value. */

#include "policy/diversion.h"

Setting watched_setting;

/* Calls `judge` with the value (NULL: there is none, and so no diversion). -1 with an exception. */
static int judge(PyObject *value, Activation *activation)
{
    PyObject *diversion = NULL;
    if (value != NULL) {
        PyObject *judge = Py_NewRef(watched_setting.judge);
        Py_INCREF(value); /* Python code runs: it may set another value, or another setting */
        activation->busy++;
        diversion = PyObject_CallOneArg(judge, value);
        activation->busy--;
        Py_DECREF(judge);
        if (diversion == NULL) {
            Py_DECREF(value);
            return -1;
        }
        if (diversion == Py_None) {
            Py_CLEAR(diversion);
        }
    }
    PyObject *seen = watched_setting.seen, *former = watched_setting.diversion;
    watched_setting.seen = value;
    watched_setting.diversion = diversion;
    Py_XDECREF(seen);
    Py_XDECREF(former);
    return 0;
}

int divert(PyObject *callback, PyObject *function, Activation *activation, PyObject **instead)
{
    *instead = NULL;
    PyObject *value = current_setting();
    if (value != watched_setting.seen && judge(value, activation) < 0) {
        return -1;
    }
    if (watched_setting.diversion == NULL) {
        return 0;
    }
    PyObject *diversion = Py_NewRef(watched_setting.diversion);
    PyObject *call[] = {callback, function};
    activation->busy++;
    PyObject *answer = PyObject_Vectorcall(diversion, call, 2, NULL);
    activation->busy--;
    Py_DECREF(diversion);
    if (answer == NULL) {
        return -1;
    }
    int other = answer != callback;
    if (other && answer != Py_None) {
        *instead = answer;
        return 1;
    }
    Py_DECREF(answer);
    return other;
}
