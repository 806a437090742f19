/* A second PEP 523 hook for tests, behaving as torch.compile's does: it chains to what it found and puts that back. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static _PyFrameEvalFunction previous = NULL;
static unsigned long long seen = 0;

static PyObject *evaluator(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag)
{
    seen++;
    if (previous != NULL) {
        return previous(tstate, frame, throwflag);
    }
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

static PyObject *on(PyObject *module, PyObject *unused)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current != evaluator) {
        previous = current;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluator);
    }
    Py_RETURN_NONE;
}

static PyObject *off(PyObject *module, PyObject *unused)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluator) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous);
        previous = NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *module, PyObject *unused) { return PyLong_FromUnsignedLongLong(seen); }

static PyObject *plain(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault);
}

static PyMethodDef methods[] = {
    {"on", on, METH_NOARGS, NULL},
    {"off", off, METH_NOARGS, NULL},
    {"count", count, METH_NOARGS, NULL},
    {"plain", plain, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "other_hook", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_other_hook(void) { return PyModule_Create(&definition); }
