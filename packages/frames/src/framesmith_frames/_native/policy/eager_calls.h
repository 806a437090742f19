/* Calls of a CompiledFunction whose own frame runs eagerly: Note [Eager calls] in eager_calls.c. */
#ifndef FRAMESMITH_EAGER_CALLS_H
#define FRAMESMITH_EAGER_CALLS_H

#include "data/activation.h"

/* One call of a CompiledFunction that the hook is switched on for. */
typedef struct PendingCall {
    PyObject *function; /* borrowed: the wrapped function */
    PyObject *on_eager; /* borrowed; NULL: nothing is reported */
    PyObject *reason;   /* strong: why the frame ran eagerly; NULL: it did not */
    unsigned long long computed_before;
    int refuses; /* on_eager is called before the frame runs */
    int frame_seen; /* the frame has reached the hook */
} PendingCall;

PendingCall *pending_call_seen(Activation *activation, PyObject *function); /* NULL: the frame is not a waiting call's */
void pending_call_computes_nothing(PendingCall *call, PyObject *reason);
/* `call` and `reason` may be NULL. -1 with an exception: the frame must not run. */
int pending_call_runs_eagerly(PendingCall *call, PyObject *reason, Activation *activation);
/* For a call that returned a result. 1: nothing more to report, now or later; 0: not yet; -1: an exception is set. */
int pending_call_returned(PendingCall *call, Activation *activation);
/* pending_call_runs_eagerly() for a call whose frame will not reach the hook. */
int pending_call_not_seen(PendingCall *call, const char *why, Activation *activation);

#endif
