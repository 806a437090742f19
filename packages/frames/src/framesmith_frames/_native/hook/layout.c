#include "hook/layout.h"

#include <string.h>

typedef struct {
    const char *field; /* NULL: the end */
    unsigned long long built, running;
} Item;

PyObject *frame_layout(PyObject *module, PyObject *unused)
{
#define ITEM(field, built, running) {field, built, running},
    const Item items[] = {FRAME_LAYOUT(ITEM){NULL, 0, 0}};
#undef ITEM
    PyObject *layout = PyList_New(0);
    for (const Item *item = items; layout != NULL && item->field != NULL; item++) {
        PyObject *triple = Py_BuildValue("(sKK)", item->field, item->built, item->running);
        if (triple == NULL || PyList_Append(layout, triple) < 0) {
            Py_CLEAR(layout);
        }
        Py_XDECREF(triple);
    }
    return layout;
}

static PyObject *running_version(void)
{
    const char *text = Py_GetVersion(); /* "3.14.2 (main, ...) [GCC ...]" */
    return PyUnicode_FromStringAndSize(text, (Py_ssize_t)strcspn(text, " "));
}

PyObject *check_frame_layout(PyObject *module, PyObject *layout)
{
    if (!PyList_Check(layout)) {
        return PyErr_Format(PyExc_TypeError, "check_frame_layout: expected a list, not %.200s", Py_TYPE(layout)->tp_name);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(layout); i++) {
        Item item;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(layout, i), "sKK:check_frame_layout", &item.field, &item.built, &item.running)) {
            return NULL;
        }
        if (item.built != item.running) {
            PyObject *running = running_version();
            if (running != NULL) {
                PyErr_Format(PyExc_ImportError,
                             "framesmith-frames was built for CPython %s; this is CPython %U, whose frames differ (%s: %llu, "
                             "not %llu): reinstall it from source.",
                             PY_VERSION, running, item.field, item.running, item.built);
                Py_DECREF(running);
            }
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

int layout_init(void)
{
    PyObject *layout = frame_layout(NULL, NULL);
    PyObject *same = layout == NULL ? NULL : check_frame_layout(NULL, layout);
    Py_XDECREF(layout);
    Py_XDECREF(same);
    return same == NULL ? -1 : 0;
}
