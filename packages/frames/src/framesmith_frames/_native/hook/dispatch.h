/* Running what decision.c found for a frame. */
#ifndef FRAMESMITH_DISPATCH_H
#define FRAMESMITH_DISPATCH_H

#include "data/code_state.h"
#include "data/records.h"
#include "policy/eager_calls.h"

PyObject *dispatch(PyThreadState *tstate, Frame *frame, const Call *call, Cache *cache, Local *local, PendingCall *pending);

#endif
