/* Whether calls go another way because of a setting of the program: see `divert_by` in the package's README.
 *
 * The setting is an item of a dict, and may be set by anybody at any time; it is looked up at each call that could use an
 * entry, which costs one lookup of an interned name. What a value means is asked once, when it is first found. */

#include "native.h"

Setting watched_setting;

/* Asks what the value (or NULL: there is none) means. -1 with an exception. */
static int judge(PyObject *value, Activation *activation)
{
    PyObject *diversion = NULL;
    if (value != NULL) {
        PyObject *judge = Py_NewRef(watched_setting.judge);
        Py_INCREF(value); /* Python code runs, and may set another value, or watch another setting */
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

static PyObject *py_divert_by(PyObject *module, PyObject *args)
{
    PyObject *namespace, *name, *judge;
    if (!PyArg_ParseTuple(args, "O!UO:divert_by", &PyDict_Type, &namespace, &name, &judge)) {
        return NULL;
    }
    if (!PyCallable_Check(judge)) {
        return PyErr_Format(PyExc_TypeError, "divert_by: expected a callable, not %.200s", Py_TYPE(judge)->tp_name);
    }
    Setting former = watched_setting;
    PyObject *given = former.namespace == NULL ? Py_NewRef(Py_None)
                                               : Py_BuildValue("OOO", former.namespace, former.name, former.judge);
    if (given == NULL) {
        return NULL;
    }
    PyObject *interned = Py_NewRef(name);
    PyUnicode_InternInPlace(&interned);
    watched_setting = (Setting){Py_NewRef(namespace), interned, Py_NewRef(judge), NULL, NULL};
    Py_XDECREF(former.namespace);
    Py_XDECREF(former.name);
    Py_XDECREF(former.judge);
    Py_XDECREF(former.seen);
    Py_XDECREF(former.diversion);
    return given;
}

PyMethodDef diversion_methods[] = {
    {"divert_by", py_divert_by, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
