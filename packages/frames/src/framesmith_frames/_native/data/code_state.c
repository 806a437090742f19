/* State of code objects: a mark, and for each cache id its entries, answers and counts; freed with the code.
 *
 * A checker or callback may run Python code, and so other threads and resets. Therefore the tuple of entries is replaced when
 * it changes, and a cache dropped by a reset is freed by the last call that uses it. */

#include "data/code_state.h"

Py_ssize_t code_state_index = -1;
static CodeState *all_states = NULL;

int (*reset_listener)(PyObject *dropped) = NULL;

/* ---- caches ---- */

static void cache_free(Cache *cache)
{
    PyObject *entries = cache->entries;
    PyObject *reason = cache->reason;
    interest_release(cache->interest);
    PyMem_Free(cache);
    Py_XDECREF(entries);
    Py_XDECREF(reason);
}

void cache_release(Cache *cache)
{
    cache->users--;
    if (cache->dropped && cache->users == 0) {
        cache_free(cache);
    }
}

Cache *cache_new(CodeState *state, unsigned long long id)
{
    Cache *cache = PyMem_Calloc(1, sizeof(Cache));
    if (cache == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    cache->id = id;
    cache->interest = interest_of_cache(id);
    cache->interesting = state->always_offered;
    cache->next = state->caches;
    state->caches = cache;
    return cache;
}

/* ---- states ---- */

static void code_state_free(void *extra)
{
    CodeState *state = extra;
    if (state == NULL) {
        return;
    }
    if (state->previous != NULL) {
        state->previous->next = state->next;
    }
    else {
        all_states = state->next;
    }
    if (state->next != NULL) {
        state->next->previous = state->previous;
    }
    Cache *cache = state->caches;
    PyObject *reason = state->mark_reason;
    PyMem_Free(state);
    Py_XDECREF(reason);
    while (cache != NULL) {
        Cache *next = cache->next;
        cache_free(cache);
        cache = next;
    }
}

int code_state_init(void)
{
    if (code_state_index >= 0) {
        return 0;
    }
    code_state_index = request_code_extra_index(code_state_free);
    if (code_state_index < 0) {
        PyErr_SetString(PyExc_ImportError, "the interpreter has no co_extra slot left for framesmith_frames");
        return -1;
    }
    return 0;
}

CodeState *code_state_new(PyCodeObject *code)
{
    CodeState *state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = code;
    if (set_code_extra((PyObject *)code, code_state_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    state->next = all_states;
    if (all_states != NULL) {
        all_states->previous = state;
    }
    all_states = state;
    return state;
}

void code_state_mark(CodeState *state, int mark, PyObject *reason)
{
    state->mark = mark;
    Py_XSETREF(state->mark_reason, Py_XNewRef(reason));
}

/* ---- entries ---- */

static PyObject *with_first(PyObject *entries, PyObject *first)
{
    Py_ssize_t size = entries == NULL ? 0 : PyTuple_GET_SIZE(entries);
    PyObject *others = PyList_New(0);
    if (others == NULL || PyList_Append(others, first) < 0) {
        Py_XDECREF(others);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (entry != first && PyList_Append(others, entry) < 0) {
            Py_DECREF(others);
            return NULL;
        }
    }
    PyObject *result = PyList_AsTuple(others);
    Py_DECREF(others);
    return result;
}

int cache_add(Cache *cache, PyObject *entry)
{
    PyObject *former, *entries;
    int is_stale;
    do { /* making a list may collect garbage, and a finalizer may reset, which replaces the entries */
        former = Py_XNewRef(cache->entries);
        entries = with_first(former, entry);
        is_stale = former != cache->entries;
        Py_XDECREF(former);
        if (entries == NULL) {
            return -1;
        }
        if (is_stale) {
            Py_DECREF(entries);
        }
    } while (is_stale);
    Py_XSETREF(cache->entries, entries);
    return 0;
}

/* Moves the entry to the front of `entries`, unless the tuple has been replaced meanwhile. */
void cache_use(Cache *cache, PyObject *entry, PyObject *entries)
{
    if (cache->entries != entries || PyTuple_GET_ITEM(entries, 0) == entry) {
        return;
    }
    if (Py_REFCNT(entries) == 2) { /* the cache's and the caller's: no other thread iterates over it */
        PyObject *moving = entry;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
            PyObject *here = PyTuple_GET_ITEM(entries, i);
            PyTuple_SET_ITEM(entries, i, moving);
            if (here == entry) {
                return;
            }
            moving = here;
        }
    }
    if (cache_add(cache, entry) < 0) {
        PyErr_Clear(); /* the order is an optimisation */
    }
}

/* ---- reset ---- */

/* Dropped entries are moved to `dropped`: freeing them may run Python code, which must wait until the states are walked. */
static int reset_state(CodeState *state, const unsigned long long *id, PyObject *dropped)
{
    Cache **link = &state->caches;
    while (*link != NULL) {
        Cache *cache = *link;
        if (id != NULL && cache->id != *id) {
            link = &cache->next;
            continue;
        }
        if (cache->entries != NULL && PyList_Append(dropped, cache->entries) < 0) {
            return -1;
        }
        *link = cache->next;
        cache->next = NULL;
        cache->dropped = 1;
        cache->users++;
        Py_CLEAR(cache->entries);
        cache_release(cache);
    }
    if (id == NULL) {
        state->skips = 0;
    }
    return 0;
}

int reset_caches(PyCodeObject *code, const unsigned long long *id)
{
    PyObject *dropped = PyList_New(0);
    if (dropped == NULL) {
        return -1;
    }
    int status = 0;
    if (code != NULL) {
        CodeState *state = code_state_find(code);
        status = state == NULL ? 0 : reset_state(state, id, dropped);
    }
    else {
        for (CodeState *state = all_states; state != NULL && status == 0; state = state->next) {
            status = reset_state(state, id, dropped);
        }
    }
    if (status == 0) {
        status = reset_listener(dropped);
    }
    Py_DECREF(dropped);
    return status;
}
