/* Per-thread state of the hook: the callback, and whether the hook is on. */
#ifndef FRAMESMITH_ACTIVATION_H
#define FRAMESMITH_ACTIVATION_H

#include "compat.h"

struct PendingCall; /* policy/eager_calls.h */

typedef struct {
    PyObject *callback;          /* strong; NULL: the hook is off on this thread */
    unsigned long long cache_id; /* id of the caches that the callback fills and uses */
    unsigned long long seen;     /* function calls that reached the hook */
    unsigned long long found;    /* of these, calls with an entry, or offered to the callback */
    unsigned long long computed; /* runs of entries that compute something compiled */
    struct PendingCall *pending_call; /* borrowed: the CompiledFunction call whose frame has not reached the hook; or NULL */
    int first;                   /* nothing was called since the callback was set: the first call is always offered */
    int busy;                    /* > 0: a callback, a checker or an error handler runs, and the hook is off */
    int paused;                  /* > 0: a complete entry or a function without the hook runs, and the hook is off */
    int unwatched;               /* an unwatched call runs; the hook is off until another callback is set */
    PyObject *pending_inputs;    /* strong; of an entry being called, see Note [Inputs] in hook/replace.c; or NULL */
} Activation;

typedef struct {
    Activation *activation; /* NULL until the thread first sets a callback */
    uintptr_t stack_floor;  /* C stack address below which the hook is suspended; NO_FLOOR_YET: not computed */
    Frame *passing;         /* the frame being passed to the evaluator below the hook */
} Local;

#define NO_FLOOR_YET UINTPTR_MAX

Local *local_state(void);
Activation *local_activation(void); /* made if missing; NULL with an exception */
/* Steals callback (or NULL), returns the old one (or NULL). */
PyObject *activation_swap(Activation *activation, PyObject *callback, unsigned long long cache_id);
extern Py_ssize_t active_threads;

/* `install` is called whenever a callback is set, `uninstall` when the last active thread clears its own. */
void activation_init(void (*install)(void), void (*uninstall)(void));

/* The state that a callback set for the length of one call replaces. */
typedef struct {
    PyObject *callback; /* strong, or NULL */
    unsigned long long cache_id;
    int first, paused;
    struct PendingCall *pending_call;
} Outer;

Outer activation_enter(Activation *activation, PyObject *callback, unsigned long long cache_id);
void activation_leave(Activation *activation, Outer outer);

static inline int activation_is_off(const Activation *activation)
{
    return activation->callback == NULL || activation->busy > 0 || activation->paused > 0 || activation->unwatched;
}

#endif
