/* The chain of frame evaluators: the hook installed in the interpreter, and the evaluator below it. */
#ifndef FRAMESMITH_EVALUATOR_H
#define FRAMESMITH_EVALUATOR_H

#include "data/activation.h"

void evaluator_init(_PyFrameEvalFunction hook);
int hook_is_suspended(void);
void hook_uninstall(void);
PyObject *hook_state(PyObject *module, PyObject *unused);
PyObject *evaluate(PyThreadState *tstate, Frame *frame, int throwflag, Local *local);
/* With the hook off in all functions that the frame calls: on this thread only, or by taking it off the interpreter. */
PyObject *evaluate_paused(PyThreadState *tstate, Frame *frame, Local *local);
PyObject *evaluate_unwatched(PyThreadState *tstate, Frame *frame, Local *local);

#endif
