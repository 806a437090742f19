/* Per-thread state: a heap record behind a thread-local pointer.
 *
 * A capsule in the thread's dictionary frees the record of a thread that ends with its callback still set. */

#include "data/activation.h"

#define ACTIVATION_KEY "framesmith_frames.activation"

static _Thread_local Local local = {NULL, NO_FLOOR_YET, NULL};

Py_ssize_t active_threads = 0;

static void (*install_hook)(void) = NULL, (*uninstall_hook)(void) = NULL;

void activation_init(void (*install)(void), void (*uninstall)(void))
{
    install_hook = install;
    uninstall_hook = uninstall;
}

Local *local_state(void) { return &local; }

PyObject *activation_swap(Activation *activation, PyObject *new, unsigned long long cache_id)
{
    PyObject *old = activation->callback;
    activation->callback = new;
    activation->cache_id = cache_id;
    activation->first = new != NULL;
    activation->unwatched = 0;
    active_threads += (new != NULL) - (old != NULL);
    if (new != NULL) {
        install_hook();
    }
    else if (active_threads == 0) {
        uninstall_hook();
    }
    return old;
}

Outer activation_enter(Activation *activation, PyObject *callback, unsigned long long cache_id)
{
    Outer outer = {NULL, activation->cache_id, activation->first, activation->paused, activation->pending_call};
    outer.callback = activation_swap(activation, Py_NewRef(callback), cache_id);
    activation->paused = 0;
    activation->pending_call = NULL;
    return outer;
}

void activation_leave(Activation *activation, Outer outer)
{
    activation->paused = outer.paused;
    activation->pending_call = outer.pending_call;
    PyObject *own = activation_swap(activation, outer.callback, outer.cache_id);
    activation->first = outer.first;
    Py_XDECREF(own);
}

/* Usually runs on the dying thread. When another thread runs it (at shutdown, after a fork), the record is leaked: the dead
 * thread's pointer may still be read. */
static void activation_forget(PyObject *capsule)
{
    Activation *activation = PyCapsule_GetPointer(capsule, ACTIVATION_KEY);
    PyObject *callback = activation_swap(activation, NULL, 0);
    if (local.activation == activation) {
        local.activation = NULL;
        PyMem_Free(activation);
    }
    Py_XDECREF(callback);
}

Activation *local_activation(void)
{
    if (local.activation != NULL) {
        return local.activation;
    }
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has no dictionary to hold an activation");
        return NULL;
    }
    Activation *activation = PyMem_Calloc(1, sizeof(Activation));
    if (activation == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(activation, ACTIVATION_KEY, activation_forget);
    if (capsule == NULL) {
        PyMem_Free(activation);
        return NULL;
    }
    local.activation = activation;
    int status = PyDict_SetItemString(dict, ACTIVATION_KEY, capsule);
    Py_DECREF(capsule); /* on failure this was the last reference: activation_forget has freed the record */
    return status < 0 ? NULL : activation;
}
