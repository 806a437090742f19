/* Note [In place]: an entry's code has the argument layout and the free variables of the code that it replaces, and the
 * frame has not run its first instruction, so its arguments are already in the right slots. The frame gets the new code and
 * is evaluated: no function is made, no argument bound again, and tracebacks, tracing, recursion limits and sys._getframe see
 * one frame, as without the hook.
 *
 * Note [Not in place]: the frame lies at the top of the thread's data stack. Where the new code needs more room than is left
 * in the current chunk, it runs as a function instead, and then the original frame is discarded.
 *
 * Note [JIT]: CPython's JIT takes the constants and names of a frame's code from the frame's function. Where it is switched
 * on, a frame that gets another code also gets a function of that code.
 *
 * Note [Inputs]: the inputs of an entry belong to its code: once that has deleted its local, no reference may keep them alive,
 * for the rest of a frame with a graph break can be long. In place, the frame takes over the reference. A function's frame
 * takes a new one, and the activation holds the first until the hook sees that frame or, while the hook is off in a complete
 * entry, until the end of the call. */

#include "hook/replace.h"

#include "data/records.h"
#include "hook/evaluator.h"

enum { INPUTS_ON_STACK = 17 };

int never_in_place = 0;

static int functions_fit_frames = 0; /* see Note [JIT] */

int replace_init(void)
{
    functions_fit_frames = jit_is_enabled();
    return functions_fit_frames < 0 ? -1 : 0;
}

static PyObject *function_with_code(PyObject *code, PyObject *function)
{
    PyFunctionObject *original = (PyFunctionObject *)function;
    PyObject *made = PyFunction_New(code, original->func_globals);
    if (made == NULL) {
        return NULL;
    }
    if (original->func_closure != NULL && PyFunction_SetClosure(made, original->func_closure) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    Py_XSETREF(((PyFunctionObject *)made)->func_builtins, Py_NewRef(original->func_builtins));
    return made;
}

/* 1: the frame has the code; 0: it has no room for it; -1: an exception. */
static int put_in_place(PyThreadState *tstate, Frame *frame, PyCodeObject *code)
{
    if (code == frame_code(frame)) {
        return 1;
    }
    PyCodeObject *old = frame_code(frame);
    PyObject **base = (PyObject **)frame;
    Py_ssize_t size = code_frame_size(code);
    if (never_in_place || tstate->datastack_top != base + code_frame_size(old) || size >= tstate->datastack_limit - base) {
        return 0;
    }
    PyObject *function = NULL;
    if (functions_fit_frames && (function = function_with_code((PyObject *)code, frame_function(frame))) == NULL) {
        return -1;
    }
    tstate->datastack_top = base + size;
    for (int i = code_argument_count(old); i < code->co_nlocalsplus; i++) {
        frame_set_local(frame, i, NULL);
    }
    frame_set_code(frame, code);
    if (function != NULL) {
        frame_set_function(frame, function);
    }
    return 1;
}

/* Discards a frame that will not run; returns `result` (NULL with the exception set). */
static PyObject *discard(PyThreadState *tstate, Frame *frame, PyObject *result)
{
    PyObject *exception = result == NULL ? PyErr_GetRaisedException() : NULL;
    frame_discard(tstate, frame);
    if (exception != NULL) {
        PyErr_SetRaisedException(exception);
    }
    return result;
}

PyObject *abandon_frame(PyThreadState *tstate, Frame *frame) { return discard(tstate, frame, NULL); }

PyObject *entry_function(Entry *entry, PyObject *function)
{
    PyObject *code = entry_flat_code(entry);
    return code == NULL ? NULL : function_with_code(code, function);
}

static PyObject *call_with_inputs(Activation *activation, PyObject *function, PyObject *const *args, int nargs,
                                  PyObject *inputs)
{
    PyObject *small[INPUTS_ON_STACK];
    PyObject **all = nargs < INPUTS_ON_STACK ? small : PyMem_Malloc((nargs + 1) * sizeof(PyObject *));
    if (all == NULL) {
        Py_DECREF(inputs);
        return PyErr_NoMemory();
    }
    if (nargs > 0) {
        memcpy(all, args, nargs * sizeof(PyObject *));
    }
    all[nargs] = inputs;
    PyObject *outer = activation->pending_inputs;
    activation->pending_inputs = inputs;
    PyObject *result = PyObject_Vectorcall(function, all, nargs + 1, NULL);
    inputs = activation->pending_inputs;
    activation->pending_inputs = outer;
    Py_XDECREF(inputs);
    if (all != small) {
        PyMem_Free(all);
    }
    return result;
}

PyObject *call_entry_function(Activation *activation, PyObject *function, PyObject *const *args, int nargs, PyObject *inputs)
{
    return inputs == NULL ? PyObject_Vectorcall(function, args, nargs, NULL)
                          : call_with_inputs(activation, function, args, nargs, inputs);
}

void inputs_arrived(Activation *activation, Frame *frame)
{
    int last = code_argument_count(frame_code(frame)) - 1;
    if (last >= 0 && frame_local(frame, last) == activation->pending_inputs) {
        Py_CLEAR(activation->pending_inputs);
    }
}

static PyObject *run_as_function(PyThreadState *tstate, Frame *frame, const Call *call, Found *found, Activation *activation)
{
    PyObject *function = entry_function(found->entry, call->function);
    if (function == NULL) {
        Py_CLEAR(found->inputs);
        return abandon_frame(tstate, frame);
    }
    PyObject *result = call_entry_function(activation, function, call->args, code_argument_count(call->code), found->inputs);
    Py_DECREF(function);
    return discard(tstate, frame, result);
}

/* No function called by a complete entry needs the hook, so it is off on this thread while one runs. */
PyObject *run_entry(PyThreadState *tstate, Frame *frame, const Call *call, Found *found, Local *local)
{
    PyCodeObject *code = (PyCodeObject *)found->entry->code;
    Activation *activation = local->activation;
    int complete = found->entry->complete;
    activation->paused += complete;
    PyObject *result;
    switch (put_in_place(tstate, frame, code)) {
    case 1:
        if (found->inputs != NULL) {
            frame_set_local(frame, code_argument_count(code), found->inputs);
        }
        result = evaluate(tstate, frame, 0, local);
        break;
    case 0:
        result = run_as_function(tstate, frame, call, found, activation);
        break;
    default:
        Py_CLEAR(found->inputs);
        result = abandon_frame(tstate, frame);
    }
    activation->paused -= complete;
    return result;
}
