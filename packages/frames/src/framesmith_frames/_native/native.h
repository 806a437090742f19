/* Declarations shared by the C files of the extension; each section names the file that defines it. */
#ifndef FRAMESMITH_NATIVE_H
#define FRAMESMITH_NATIVE_H

#include "check_abi.h"
#include "compat.h"

/* ---- thread.c: what each thread has switched on ---- */

typedef struct TargetCall TargetCall;

typedef struct {
    PyObject *callback; /* strong, or NULL: the hook is off on this thread */
    unsigned long long cache; /* which of a code's caches the callback fills and uses */
    unsigned long long seen;  /* calls of functions, as the hook met them */
    unsigned long long found; /* those of them that had an entry, or that the callback was asked about */
    unsigned long long computed; /* runs of entries that compute something compiled */
    TargetCall *target; /* borrowed, or NULL: the call of a compiled function whose frame has not been met yet */
    int first;          /* nothing was called yet since the callback was set: what is called first is always asked about */
    int busy;           /* greater than 0: a callback, a checker or an error handler runs, and the hook is off */
    int paused;         /* greater than 0: a complete entry or a function without the hook runs, and the hook is off */
    int unwatched;      /* a call left alone with all it calls runs, and the hook is off until another callback is set */
    PyObject *handed;   /* strong, or NULL: the inputs of an entry being called, see Note [Inputs] in replace.c */
} Activation;

typedef struct {
    Activation *activation; /* NULL until the thread first sets a callback */
    uintptr_t stack_floor;  /* below this address the C stack is too full to go on hooking; 0: not yet known */
    Frame *passing;         /* the frame now being handed to the evaluator below ours */
} Local;

Local *local_state(void);
Activation *local_activation(void); /* made if missing; NULL with an exception */
/* Steals callback (or NULL), returns the old one (or NULL). */
PyObject *activation_swap(Activation *activation, PyObject *callback, unsigned long long cache);
extern Py_ssize_t active_threads;

/* The callback switched on for the length of a call: what was there before comes back. */
typedef struct {
    PyObject *callback; /* strong, or NULL */
    unsigned long long cache;
    int first, paused;
    TargetCall *target;
} Outer;

Outer activation_enter(Activation *activation, PyObject *callback, unsigned long long cache);
void activation_leave(Activation *activation, Outer outer);

static inline int activation_is_off(const Activation *activation)
{
    return activation->callback == NULL || activation->busy > 0 || activation->paused > 0 || activation->unwatched;
}

/* ---- hook.c: the evaluator, installed on the interpreter while any thread is active ---- */

void hook_install(void);
void hook_uninstall(void);
int hook_is_suspended(void);
PyObject *hook_state(PyObject *module, PyObject *unused);
PyObject *evaluate(PyThreadState *tstate, Frame *frame, int throwflag, Local *local);
PyObject *evaluate_paused(PyThreadState *tstate, Frame *frame, Local *local); /* the hook is off in all it calls */

/* ---- diversion.c: whether calls go another way because of a setting of the program ---- */

typedef struct {
    PyObject *namespace, *name, *judge; /* all NULL: there is no such setting */
    PyObject *seen;      /* strong: the value judged last, or NULL */
    PyObject *diversion; /* strong: what that means for calls; NULL: nothing */
} Setting;

extern Setting watched_setting;
extern PyMethodDef diversion_methods[];

static inline PyObject *current_setting(void) /* borrowed, or NULL */
{
    return PyDict_GetItemWithError(watched_setting.namespace, watched_setting.name); /* strings: it cannot fail */
}

static inline int may_be_diverted(void)
{
    return watched_setting.namespace != NULL &&
           (watched_setting.diversion != NULL || current_setting() != watched_setting.seen);
}

/* 1: *instead is the callback to use (strong), NULL: run the call eagerly with the hook off; 0: as always; -1: an exception. */
int divert(PyObject *callback, PyObject *function, Activation *activation, PyObject **instead);

/* ---- code_state.c: what is known of a code object, on its co_extra ---- */

typedef struct Cache {
    struct Cache *next; /* another cache of the same code */
    unsigned long long id;
    PyObject *entries; /* tuple of Entry, most recently used first, or NULL; replaced, never changed while others see it */
    PyObject *reason;  /* why skipped or last run eagerly (str), or NULL */
    struct Interest *interest; /* NULL: the callback is asked about every call; see interest.c */
    int interesting;     /* the code itself is something to ask about, whatever it is called with */
    int names_known;   /* `interesting` says what the names in the code gave */
    int calls_inside;  /* a call that was watched called other functions */
    int quiet_calls;   /* in which nothing was found, one after the other, while they were watched */
    int skip;          /* whether the callback answered SKIP: NOT_SKIPPED, SKIPPED or SKIPPED_RECURSIVELY */
    int quiet;         /* its last answer is not to be reported */
    int users;         /* calls that hold this pointer while Python code may run */
    int dropped;       /* by a reset: freed by its last user */
    unsigned long long hits, misses, skips, run_once, rejected, errors, filtered;
} Cache;

enum { NOT_SKIPPED = 0, SKIPPED, SKIPPED_RECURSIVELY };
enum { NOT_MARKED = 0, MARKED_BY_PROGRAM, MARKED_RESIDUAL };

typedef struct CodeState {
    struct CodeState *next, *previous; /* all states, so that reset() finds them */
    PyCodeObject *code;                /* borrowed: the state dies with its code */
    Cache *caches;
    int mark;              /* never offered, whatever the cache */
    PyObject *mark_reason; /* str, or NULL */
    int always_offered;      /* whatever its callbacks are interested in */
    unsigned long long skips;
} CodeState;

int code_state_init(void);
CodeState *code_state_find(PyCodeObject *code); /* NULL if there is none; never fails */
CodeState *code_state_get(PyCodeObject *code);  /* made if missing; NULL with an exception */
void code_state_mark(CodeState *state, int mark, PyObject *reason);
Cache *cache_find(CodeState *state, unsigned long long id);
Cache *cache_get(CodeState *state, unsigned long long id); /* made if missing; NULL with an exception */
void cache_release(Cache *cache);                          /* ends what `cache->users++` began */
int cache_add(Cache *cache, PyObject *entry);
void cache_use(Cache *cache, PyObject *entry, PyObject *entries);
int reset_caches(PyCodeObject *code, const unsigned long long *id); /* of one code or of all; of one id or of all */

/* ---- interest.c: whether a call reaches what a callback wants to be asked about ---- */

typedef struct Interest Interest;

/* OFFERED: to the callback, if no entry applies. EAGER_WATCHED: left alone, not what it calls. EAGER_UNWATCHED: with all it calls.
 * EAGER_LEAF: likewise, but calls nothing. */
typedef enum { OFFERED, EAGER_LEAF, EAGER_WATCHED, EAGER_UNWATCHED } Filtering;

Filtering filter_call(Cache *cache, PyCodeObject *code, PyObject *function, PyObject *const *args); /* never fails */
Interest *interest_of_cache(unsigned long long id); /* NULL if its callback is asked about everything; never fails */
void interest_release(Interest *interest);           /* what interest_of_cache() gave */
void interest_forget(unsigned long long id);
extern PyMethodDef interest_methods[];

/* ---- code_api.c: the same, for Python ---- */

PyCodeObject *code_argument(PyObject *target); /* borrowed; NULL with an exception */

extern PyMethodDef code_methods[];

/* ---- owner.c: which cache belongs to a callback ---- */

int callback_cache(PyObject *callback, unsigned long long *id);
extern PyMethodDef owner_methods[];

/* An argument `cache`: None or an integer. */
typedef struct {
    int given;
    unsigned long long id;
} CacheArgument;

int cache_argument(PyObject *value, void *argument); /* a PyArg converter */

/* ---- records.c: what the callback gets and answers ---- */

typedef struct {
    PyObject_HEAD
    PyObject *check;
    PyObject *code;
    PyObject *flat_code; /* the same code with every argument positional, the inputs last; made when first needed */
    const framesmith_check_v1 *native;
    PyObject *capsule; /* keeps `native` alive */
    PyObject *extract; /* the method of a checker without capsule, if `inputs` */
    char complete;
    char inputs; /* the check gives a tuple for the first local of `code` after the arguments */
    PyObject *eager; /* str, why `code` computes nothing compiled, empty if there is nothing to compute; NULL: it does */
    unsigned long long hits;
    PyObject *weakrefs;
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *reason;
    char quiet; /* not reported to on_eager */
    char recursive; /* of a SKIP: the hook is off in what the code calls */
    PyObject *returned; /* of a RUN_ONCE: called without arguments when the call returns and does not raise; or NULL */
} Answer;

extern PyTypeObject Entry_Type, Skip_Type, RunOnce_Type, FrameInfo_Type;
int code_argument_count(PyCodeObject *code);
PyObject *frame_info_new(PyObject *function, PyCodeObject *code, PyObject *const *args, unsigned long long cache);
int entry_fits(Entry *entry, PyCodeObject *code); /* -1 with an exception naming the difference */
/* 1, 0 or -1; with 1 and an entry with inputs, *inputs is their tuple (strong), else NULL. */
int entry_check(Entry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **inputs);
PyObject *entry_flat_code(Entry *entry); /* borrowed */

/* ---- dispatch.c: find an entry or ask for one ---- */

typedef struct {
    Entry *entry;     /* strong: it applies */
    PyObject *inputs; /* strong: the tuple that its check gave; NULL if it has no inputs */
    PyObject *returned; /* strong: with no entry, what is called when the call returns; or NULL */
} Found;

/* 1: *found is filled; 0: no entry applies; -1: a checker raised. */
int find_entry(Cache *cache, PyObject *const *args, Py_ssize_t nargs, PyObject *function, Activation *activation,
               Found *found);
PyObject *dispatch(PyThreadState *tstate, Frame *frame, Cache *cache, Local *local, TargetCall *target);
extern PyMethodDef dispatch_methods[];

/* ---- replace.c: run an entry's code in place of a frame ---- */

PyObject *run_entry(PyThreadState *tstate, Frame *frame, Found *found, Local *local); /* takes found->inputs */
PyObject *abandon_frame(PyThreadState *tstate, Frame *frame); /* with an exception set; returns NULL */
PyObject *entry_function(Entry *entry, PyObject *function);   /* new function: flat code, function's globals and closure */
/* Calls what entry_function() made, with the inputs (or NULL) behind the `nargs` arguments. Takes the inputs. */
PyObject *call_entry_function(Activation *activation, PyObject *function, PyObject *const *args, int nargs, PyObject *inputs);
void inputs_arrived(Activation *activation, Frame *frame); /* for a frame that may be the one it called */
extern int never_in_place;                                    /* for tests: always take the slow way */

/* ---- eager.c: compiled functions' own frames that run eagerly ---- */

/* One call of a CompiledFunction that the hook is switched on for. */
struct TargetCall {
    PyObject *function; /* borrowed: whose frame it is */
    PyObject *on_eager; /* borrowed, or NULL: nobody wants to know */
    PyObject *reason;   /* strong: why the frame ran eagerly; NULL: it did not */
    unsigned long long computed_before;
    int refuses; /* on_eager is called before */
    int met;     /* the hook has seen the frame */
};

TargetCall *target_arrived(Activation *activation, PyObject *function); /* NULL: the frame is no waiting call's */
void target_computes_nothing(TargetCall *call, PyObject *reason);
/* `call` and `reason` may be NULL. -1 with an exception: the frame must not run. */
int target_runs_eagerly(TargetCall *call, PyObject *reason, Activation *activation);
/* Of a call that has given a result. 1: there is nothing more to report, now or later; 0: not yet; -1: an exception is set. */
int target_returned(TargetCall *call, Activation *activation);
/* The same for a call whose frame will not reach the hook. */
int target_is_not_met(TargetCall *call, const char *why, Activation *activation);

/* ---- bind.c: from a call's arguments to a frame's ---- */

enum { BOUND_ON_STACK = 16 };

typedef struct {
    PyObject *const *args; /* in co_varnames order, *args and **kwargs packed: the caller's own array, or `owned` */
    PyObject **owned;      /* strong references, or NULL */
    int count;             /* of `owned` */
    PyObject *small[BOUND_ON_STACK];
} Binding;

/* 1: bound; 0: the function does not take these arguments (no exception is set); -1: out of memory. */
int bind_arguments(Binding *binding, PyFunctionObject *function, PyCodeObject *code, PyObject *const *args,
                   Py_ssize_t nargs, PyObject *kwnames);
void bind_release(Binding *binding);

/* ---- wrapper.c: what CompiledFunction and without_hook have in common ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *wrapped;
    PyObject *dict;
    PyObject *weakrefs;
} Wrapper;

int wrapper_traverse(Wrapper *self, visitproc visit, void *arg);
int wrapper_clear(Wrapper *self);
void wrapper_dealloc(PyObject *self); /* of an object already untracked */
PyObject *wrapper_bind_method(PyObject *self, PyObject *instance, PyObject *owner);
PyObject *wrapper_getattro(PyObject *self, PyObject *name);
extern PyGetSetDef wrapper_getset[];
extern PyMethodDef wrapper_methods[];
extern PyTypeObject WithoutHook_Type;

/* ---- compiled_function.c ---- */

extern PyTypeObject CompiledFunction_Type;
int compiled_functions_reset(PyObject *dropped); /* appends what is let go to a list, so that it dies later */

#endif
