/* State of a code object, stored in its co_extra: a mark, and one Cache for each cache id. */
#ifndef FRAMESMITH_CODE_STATE_H
#define FRAMESMITH_CODE_STATE_H

#include "data/interest.h"

typedef struct Cache {
    struct Cache *next; /* another cache of the same code */
    unsigned long long id;
    PyObject *entries; /* tuple of Entry, most recently used first, or NULL; replaced, never changed while shared */
    PyObject *reason;  /* str: of the latest SKIP or RUN_ONCE; or NULL */
    Interest *interest; /* strong; NULL: every call is offered to the callback */
    int interesting;   /* offered whatever the arguments are */
    int names_known;   /* `interesting` includes the result for the names in the code */
    int calls_inside;  /* a watched call called other functions */
    int uninteresting_calls; /* consecutive watched calls inside which nothing was found */
    int skip;          /* the callback's SKIP: NOT_SKIPPED, SKIPPED or SKIPPED_RECURSIVELY */
    int quiet;         /* the latest answer is not reported to on_eager */
    int users;         /* calls that hold this pointer while Python code may run */
    int dropped;       /* by a reset: freed by its last user */
    unsigned long long hits, misses, skips, run_once, rejected, errors, filtered;
} Cache;

enum { NOT_SKIPPED = 0, SKIPPED, SKIPPED_RECURSIVELY };
enum { NOT_MARKED = 0, MARKED_BY_PROGRAM, MARKED_RESIDUAL };

typedef struct CodeState {
    struct CodeState *next, *previous; /* list of all states, for resets */
    PyCodeObject *code;                /* borrowed: the state dies with its code */
    Cache *caches;
    int mark;              /* if set, the code is never offered, whatever the cache */
    PyObject *mark_reason; /* str, or NULL */
    int always_offered;    /* exempt from interest filters */
    unsigned long long skips;
} CodeState;

int code_state_init(void);
CodeState *code_state_new(PyCodeObject *code); /* for a code object without one; NULL with an exception */
void code_state_mark(CodeState *state, int mark, PyObject *reason);
Cache *cache_new(CodeState *state, unsigned long long id); /* for a state without one of this id; NULL with an exception */
void cache_release(Cache *cache);                          /* undoes `cache->users++` */
int cache_add(Cache *cache, PyObject *entry);
void cache_use(Cache *cache, PyObject *entry, PyObject *entries);
int reset_caches(PyCodeObject *code, const unsigned long long *id); /* of one code or of all; of one id or of all */

/* Called at the end of each reset: appends to `dropped` what the reset invalidates elsewhere. -1 with an exception. */
extern int (*reset_listener)(PyObject *dropped);

/* ---- each call that the hook sees looks these up ---- */

extern Py_ssize_t code_state_index; /* among the values that code objects keep for others */

/* NULL if there is none; never fails. */
static inline CodeState *code_state_find(PyCodeObject *code)
{
    void *extra = NULL;
    if (get_code_extra((PyObject *)code, code_state_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

/* Made if missing; NULL with an exception. */
static inline CodeState *code_state_get(PyCodeObject *code)
{
    CodeState *state = code_state_find(code);
    return state != NULL ? state : code_state_new(code);
}

static inline Cache *cache_find(CodeState *state, unsigned long long id)
{
    Cache *cache = state->caches;
    while (cache != NULL && cache->id != id) {
        cache = cache->next;
    }
    return cache;
}

/* Made if missing; NULL with an exception. */
static inline Cache *cache_get(CodeState *state, unsigned long long id)
{
    Cache *cache = cache_find(state, id);
    return cache != NULL ? cache : cache_new(state, id);
}

#endif
