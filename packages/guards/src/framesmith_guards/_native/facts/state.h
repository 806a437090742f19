/* Torch's global state: modes, a snapshot and a few reads, or the full comparison. */
#ifndef FRAMESMITH_GUARDS_STATE_H
#define FRAMESMITH_GUARDS_STATE_H

#include "instruction.h"

typedef struct {
    unsigned inactive;  /* bits of tensors/torch_modes.h: modes that are not active in the state that is expected */
    PyObject *snapshot; /* owned: callable, True while the torch state is the one last compared; NULL at first */
    PyObject *renew;    /* owned: callable giving a snapshot; NULL if this torch has none */
    PyObject *rows;     /* owned: tuple of (callable, expected) covered by neither */
    PyObject *compare;  /* owned: callable comparing everything */
} StateCheck;

/* `active`: those bits of `inactive` that are set now. */
int state_holds(StateCheck *state, unsigned active);

#endif
