/* The chain of frame evaluators: the hook installed in the interpreter, and the evaluator below it. */
#ifndef FRAMESMITH_EVALUATOR_H
#define FRAMESMITH_EVALUATOR_H

#include "data/activation.h"

void evaluator_init(_PyFrameEvalFunction hook);
int hook_is_suspended(void);
void hook_uninstall(void);
PyObject *hook_state(PyObject *module, PyObject *unused);
extern _PyFrameEvalFunction evaluator_below; /* under the hook; NULL: the hook is not in the chain */
PyObject *evaluate_unusually(PyThreadState *tstate, Frame *frame, int throwflag, Local *local);

/* Runs a frame by the evaluator below the hook. */
static inline PyObject *evaluate(PyThreadState *tstate, Frame *frame, int throwflag, Local *local)
{
    if (evaluator_below != _PyEval_EvalFrameDefault || (uintptr_t)__builtin_frame_address(0) < local->stack_floor) {
        return evaluate_unusually(tstate, frame, throwflag, local);
    }
    GIVE_BACK_RECURSION(tstate);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    TAKE_RECURSION(tstate);
    return result;
}

/* With the hook off in all functions that the frame calls: on this thread only, or by taking it off the interpreter. */
PyObject *evaluate_paused(PyThreadState *tstate, Frame *frame, Local *local);
PyObject *evaluate_unwatched(PyThreadState *tstate, Frame *frame, Local *local);

#endif
