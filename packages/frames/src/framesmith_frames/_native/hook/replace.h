/* Running an entry's code in place of a frame, or as a function. */
#ifndef FRAMESMITH_REPLACE_H
#define FRAMESMITH_REPLACE_H

#include "data/activation.h"
#include "policy/decision.h"

int replace_init(void); /* -1 with an exception */
PyObject *run_entry(PyThreadState *tstate, Frame *frame, const Call *call, Found *found, Local *local); /* takes found->inputs */
PyObject *abandon_frame(PyThreadState *tstate, Frame *frame); /* with an exception set; returns NULL */
PyObject *entry_function(Entry *entry, PyObject *function);   /* new function: flat code, function's globals and closure */
/* Calls a function made by entry_function() with `nargs` arguments and the inputs (or NULL). Takes the inputs. */
PyObject *call_entry_function(Activation *activation, PyObject *function, PyObject *const *args, int nargs, PyObject *inputs);
void inputs_arrived(Activation *activation, Frame *frame); /* for a frame that may be the one that it called */
extern int never_in_place;                                 /* for tests: always run entries as functions */

#endif
