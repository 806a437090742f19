/* Calls of a CompiledFunction whose own frame runs eagerly: Note [Eager calls] in eager_calls.c. */
#ifndef FRAMESMITH_EAGER_CALLS_H
#define FRAMESMITH_EAGER_CALLS_H

#include "data/activation.h"

/* One call of a CompiledFunction that the hook is switched on for. */
typedef struct TargetCall {
    PyObject *function; /* borrowed: the wrapped function */
    PyObject *on_eager; /* borrowed; NULL: nothing is reported */
    PyObject *reason;   /* strong: why the frame ran eagerly; NULL: it did not */
    unsigned long long computed_before;
    int refuses; /* on_eager is called before the frame runs */
    int met;     /* the frame has reached the hook */
} TargetCall;

TargetCall *target_arrived(Activation *activation, PyObject *function); /* NULL: the frame is not a waiting call's */
void target_computes_nothing(TargetCall *call, PyObject *reason);
/* `call` and `reason` may be NULL. -1 with an exception: the frame must not run. */
int target_runs_eagerly(TargetCall *call, PyObject *reason, Activation *activation);
/* For a call that returned a result. 1: nothing more to report, now or later; 0: not yet; -1: an exception is set. */
int target_returned(TargetCall *call, Activation *activation);
/* target_runs_eagerly() for a call whose frame will not reach the hook. */
int target_is_not_met(TargetCall *call, const char *why, Activation *activation);

#endif
