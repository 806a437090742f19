/* Note [In place]: an entry's code has the argument layout and the free variables of the code that it replaces, and the
 * frame has not run its first instruction, so its arguments are already in the right slots. The frame gets the new code and
 * is evaluated: no function is made, no argument bound again, and tracebacks, tracing, recursion limits and sys._getframe see
 * one frame, as without the hook.
 *
 * Note [Not in place]: the frame lies at the top of the thread's data stack. Where the new code needs more room than is left
 * in the current chunk, it runs as a function instead, and then the original frame is retired: a value is pushed, the frame
 * pointed at a static RETURN_VALUE, and CPython's evaluator finishes it. That instruction is in no code object, so no tracing
 * or monitoring tool sees it. On 3.11 the caller of the evaluator clears the frame, and nothing needs to be done.
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

static int is_in_place(PyThreadState *tstate, Frame *frame, PyCodeObject *code)
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
    tstate->datastack_top = base + size;
    for (int i = code_argument_count(old); i < code->co_nlocalsplus; i++) {
        frame->localsplus[i] = NULL;
    }
    frame->stacktop = code->co_nlocalsplus;
    frame_set_code(frame, (PyCodeObject *)Py_NewRef((PyObject *)code));
    frame_rewind(frame, code);
    Py_DECREF(old);
    return 1;
}

/* Finishes a frame that will not run; returns `result` (NULL with the exception set). */
static PyObject *retire(PyThreadState *tstate, Frame *frame, PyObject *result)
{
#if EVALUATOR_CLEARS_FRAME
    static _Py_CODEUNIT instructions[2] = {{.op = {.code = RETURN_VALUE}}, {.op = {.code = RETURN_VALUE}}};
    PyObject *exception = result == NULL ? PyErr_GetRaisedException() : NULL;
    frame->localsplus[frame->stacktop++] = Py_NewRef(Py_None);
    frame_go_to(frame, &instructions[1]);
    GIVE_BACK_RECURSION(tstate);
    PyObject *none = _PyEval_EvalFrameDefault(tstate, frame, 0);
    TAKE_RECURSION(tstate);
    if (none == NULL) {
        PyErr_Clear(); /* the recursion limit; the frame is cleared nevertheless */
    }
    Py_XDECREF(none);
    if (exception != NULL) {
        PyErr_SetRaisedException(exception);
    }
#endif
    return result;
}

PyObject *abandon_frame(PyThreadState *tstate, Frame *frame) { return retire(tstate, frame, NULL); }

PyObject *entry_function(Entry *entry, PyObject *function)
{
    PyFunctionObject *original = (PyFunctionObject *)function;
    PyObject *code = entry_flat_code(entry);
    PyObject *made = code == NULL ? NULL : PyFunction_New(code, original->func_globals);
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
    if (last >= 0 && frame->localsplus[last] == activation->pending_inputs) {
        Py_CLEAR(activation->pending_inputs);
    }
}

static PyObject *run_as_function(PyThreadState *tstate, Frame *frame, Found *found, Activation *activation)
{
    PyObject *function = entry_function(found->entry, frame_function(frame));
    if (function == NULL) {
        Py_CLEAR(found->inputs);
        return abandon_frame(tstate, frame);
    }
    int nargs = code_argument_count(frame_code(frame));
    PyObject *result = call_entry_function(activation, function, frame->localsplus, nargs, found->inputs);
    Py_DECREF(function);
    return retire(tstate, frame, result);
}

/* No function called by a complete entry needs the hook, so it is off on this thread while one runs. */
PyObject *run_entry(PyThreadState *tstate, Frame *frame, Found *found, Local *local)
{
    PyCodeObject *code = (PyCodeObject *)found->entry->code;
    Activation *activation = local->activation;
    int complete = found->entry->complete;
    activation->paused += complete;
    PyObject *result;
    if (is_in_place(tstate, frame, code)) {
        if (found->inputs != NULL) {
            frame->localsplus[code_argument_count(code)] = found->inputs;
        }
        result = evaluate(tstate, frame, 0, local);
    }
    else {
        result = run_as_function(tstate, frame, found, activation);
    }
    activation->paused -= complete;
    return result;
}
