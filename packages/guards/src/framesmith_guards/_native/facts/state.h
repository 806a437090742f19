/* Torch's global state: a snapshot, or the full comparison. */
#ifndef FRAMESMITH_GUARDS_STATE_H
#define FRAMESMITH_GUARDS_STATE_H

#include "instruction.h"

typedef struct {
    PyObject *snapshot; /* owned: callable, True while the torch state is the one last compared; NULL at first */
    PyObject *renew;    /* owned: callable giving a snapshot; NULL if this torch has none */
    PyObject *rows;     /* owned: tuple of (callable, expected) not covered by the snapshot */
    PyObject *compare;  /* owned: callable comparing everything */
} StateCheck;

int state_holds(StateCheck *state);

#endif
