/* Reports to `on_eager` that the frame of a compiled function runs eagerly, before it runs or after.
 *
 * Note [Eager calls]: a call of a CompiledFunction is stored in the thread's activation until the frame of the wrapped
 * function reaches the hook, and the code that lets the frame run eagerly passes the reason. With `refuses`, on_eager is
 * called before the frame's first instruction, for each such call, and its exceptions reach the caller. Without, it is called
 * once, after the first call in which the frame ran eagerly (or ran an entry that computes nothing compiled) and no other
 * entry computed anything. */

#include "policy/eager_calls.h"

static int report(PendingCall *call, PyObject *reason, Activation *activation)
{
    PyObject *arguments[] = {call->function, reason};
    activation->busy++;
    PyObject *answer = PyObject_Vectorcall(call->on_eager, arguments, 2, NULL);
    activation->busy--;
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

PendingCall *pending_call_seen(Activation *activation, PyObject *function)
{
    PendingCall *call = activation->pending_call;
    if (call == NULL || call->function != function) {
        return NULL;
    }
    activation->pending_call = NULL;
    call->frame_seen = 1;
    return call;
}

void pending_call_computes_nothing(PendingCall *call, PyObject *reason) { Py_XSETREF(call->reason, Py_NewRef(reason)); }

int pending_call_runs_eagerly(PendingCall *call, PyObject *reason, Activation *activation)
{
    if (call == NULL || call->on_eager == NULL || Py_IsFinalizing()) {
        return 0;
    }
    PyObject *text = reason == NULL ? PyUnicode_FromString("") : Py_NewRef(reason);
    if (text == NULL) {
        return -1;
    }
    Py_XSETREF(call->reason, text);
    return call->refuses ? report(call, text, activation) : 0;
}

int pending_call_not_seen(PendingCall *call, const char *why, Activation *activation)
{
    PyObject *reason = PyUnicode_FromString(why);
    int status = reason == NULL ? -1 : pending_call_runs_eagerly(call, reason, activation);
    Py_XDECREF(reason);
    call->frame_seen = 1;
    if (status < 0) {
        Py_CLEAR(call->reason);
    }
    return status;
}

int pending_call_returned(PendingCall *call, Activation *activation)
{
    if (call->refuses) {
        return call->frame_seen ? 0 : pending_call_not_seen(call, "the frame hook did not see the call", activation);
    }
    if (activation->computed != call->computed_before) {
        return 1;
    }
    return call->reason == NULL ? 0 : report(call, call->reason, activation) < 0 ? -1 : 1;
}
