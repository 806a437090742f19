/* A call binds the arguments, runs the entries' checks, and calls the code of the one that applies as a function. The hook is
 * switched on for the length of the call (with this object's own callback) only where none applies or the entry is not
 * complete. */

#include "api/compiled_function.h"

#include "api/bind.h"
#include "api/code_api.h"
#include "data/activation.h"
#include "data/code_state.h"
#include "data/owner.h"
#include "data/records.h"
#include "hook/evaluator.h"
#include "hook/replace.h"
#include "policy/decision.h"
#include "policy/diversion.h"
#include "policy/eager_calls.h"
#include <structmember.h>

typedef struct CompiledFunction {
    Wrapper base;
    PyObject *callback;
    PyObject *on_eager; /* NULL: calls that run eagerly are not reported */
    char refuses;       /* on_eager is called before each of them, and may raise */
    int settled;        /* there is nothing more to report */
    unsigned long long cache_id;
    PyObject *functions;                  /* dict: entry -> function that runs it, or NULL */
    PyObject *last_entry, *last_function; /* borrowed from `functions` */
    struct CompiledFunction *next, *previous;
} CompiledFunction;

static CompiledFunction *all_compiled = NULL; /* for resets */

/* ---- the functions that run the entries ---- */

static void forget_functions(CompiledFunction *self)
{
    self->last_entry = NULL;
    self->last_function = NULL;
    Py_CLEAR(self->functions);
}

static int reset_functions(PyObject *dropped)
{
    for (CompiledFunction *self = all_compiled; self != NULL; self = self->next) {
        if (self->functions != NULL && PyList_Append(dropped, self->functions) < 0) {
            return -1;
        }
        forget_functions(self);
        self->settled = 0;
    }
    return 0;
}

/* One function is made for each entry and CompiledFunction, and dropped by a reset. The entry does not hold it: it holds the
 * module's globals, and the collector does not see what a code object's co_extra holds. */
static PyObject *function_for(CompiledFunction *self, Entry *entry)
{
    if (self->last_entry == (PyObject *)entry) {
        return Py_NewRef(self->last_function);
    }
    if (self->functions == NULL && (self->functions = PyDict_New()) == NULL) {
        return NULL;
    }
    PyObject *functions = Py_NewRef(self->functions);
    PyObject *function = Py_XNewRef(PyDict_GetItemWithError(functions, (PyObject *)entry));
    if (function == NULL && !PyErr_Occurred()) {
        function = entry_function(entry, self->base.wrapped);
        if (function != NULL && PyDict_SetItem(functions, (PyObject *)entry, function) < 0) {
            Py_CLEAR(function);
        }
    }
    if (function != NULL && functions == self->functions) {
        self->last_entry = (PyObject *)entry;
        self->last_function = function;
    }
    Py_DECREF(functions);
    return function;
}

/* ---- the call ---- */

/* The reason why no frame of this thread reaches the hook now, or NULL. */
static const char *why_unhooked(const Activation *activation)
{
    if (activation->busy > 0) {
        return "it is called while a call is being traced or compiled";
    }
    if (PyThreadState_Get()->tracing) {
        return "it is called by a trace function or a monitoring callback";
    }
    return hook_is_suspended() ? "more than half of a thread's C stack is used" : NULL;
}

/* While a callback runs on this thread, nothing is compiled, and the call is an ordinary one. */
static PyObject *call_wrapped(CompiledFunction *self, Activation *activation, PendingCall *call, PyObject *const *args,
                              size_t nargsf, PyObject *kwnames)
{
    if (activation->busy > 0) {
        return PyObject_Vectorcall(self->base.wrapped, args, nargsf, kwnames);
    }
    Outer outer = activation_enter(activation, self->callback, self->cache_id);
    activation->pending_call = call->frame_seen ? NULL : call;
    PyObject *result = PyObject_Vectorcall(self->base.wrapped, args, nargsf, kwnames);
    activation_leave(activation, outer);
    return result;
}

static PyObject *call_hooked(CompiledFunction *self, Activation *activation, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    PendingCall call = {
        .function = self->base.wrapped,
        .on_eager = self->settled ? NULL : self->on_eager,
        .computed_before = activation->computed,
        .refuses = self->refuses,
    };
    const char *why = call.on_eager == NULL ? NULL : why_unhooked(activation);
    if (why != NULL && pending_call_not_seen(&call, why, activation) < 0) {
        return NULL;
    }
    PyObject *result = call_wrapped(self, activation, &call, args, nargsf, kwnames);
    if (result != NULL && call.on_eager != NULL) {
        int status = pending_call_returned(&call, activation);
        self->settled |= status > 0;
        if (status < 0) {
            Py_CLEAR(result);
        }
    }
    Py_XDECREF(call.reason);
    return result;
}

/* Takes the inputs. The hook is off in a complete entry, and on in another. */
static PyObject *call_entry(CompiledFunction *self, Activation *activation, Found *found, PyObject *const *args, int nargs)
{
    PyObject *function = function_for(self, found->entry);
    if (function == NULL) {
        Py_CLEAR(found->inputs);
        return NULL;
    }
    PyObject *result;
    activation->computed += found->entry->eager == NULL;
    if (found->entry->complete) {
        activation->paused++;
        result = call_entry_function(activation, function, args, nargs, found->inputs);
        activation->paused--;
    }
    else if (activation->busy > 0) {
        result = call_entry_function(activation, function, args, nargs, found->inputs);
    }
    else {
        Outer outer = activation_enter(activation, self->callback, self->cache_id);
        activation->first = 0; /* the entry itself is the first call */
        result = call_entry_function(activation, function, args, nargs, found->inputs);
        activation_leave(activation, outer);
    }
    Py_DECREF(function);
    return result;
}

/* Runs the call eagerly (`callback` is NULL), or with the hook and another callback. Takes the callback. */
static PyObject *call_diverted(CompiledFunction *self, Activation *activation, PyObject *callback, PyObject *const *args,
                               size_t nargsf, PyObject *kwnames)
{
    PyObject *result = NULL;
    unsigned long long cache_id;
    if (callback == NULL) {
        activation->paused++;
        result = PyObject_Vectorcall(self->base.wrapped, args, nargsf, kwnames);
        activation->paused--;
    }
    else if (callback_cache(callback, &cache_id) == 0) {
        Outer outer = activation_enter(activation, callback, cache_id);
        result = PyObject_Vectorcall(self->base.wrapped, args, nargsf, kwnames);
        activation_leave(activation, outer);
    }
    Py_XDECREF(callback);
    return result;
}

/* 1: *found is filled, and the binding must be released; 0: no entry applies; -1: an interrupt. An error of a checker counts as
 * none: the hook runs the checker again and reports it. */
static int find_for_call(CompiledFunction *self, Activation *activation, PyObject *const *args, size_t nargsf,
                         PyObject *kwnames, Binding *binding, Found *found)
{
    PyObject *wrapped = self->base.wrapped;
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)wrapped)->func_code;
    CodeState *state = code_state_find(code);
    Cache *cache = state == NULL || state->mark != NOT_MARKED ? NULL : cache_find(state, self->cache_id);
    if (cache == NULL || cache->entries == NULL) {
        return 0;
    }
    Py_INCREF(code); /* binding may collect garbage, and a checker runs Python code: resets, another code of the function */
    cache->users++;
    int status = bind_arguments(binding, (PyFunctionObject *)wrapped, code, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (status > 0) {
        status = find_entry(cache, binding->args, code_argument_count(code), wrapped, activation, found);
    }
    cache_release(cache);
    Py_DECREF(code);
    if (status > 0) {
        return 1;
    }
    bind_release(binding);
    if (status == 0 || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 0;
    }
    return -1;
}

static PyObject *compiled_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CompiledFunction *self = (CompiledFunction *)callable;
    Activation *activation = local_activation();
    if (activation == NULL) {
        return NULL;
    }
    if (may_be_diverted() && activation->busy == 0) {
        PyObject *instead;
        int diverted = divert(self->callback, self->base.wrapped, activation, &instead);
        if (diverted != 0) {
            return diverted < 0 ? NULL : call_diverted(self, activation, instead, args, nargsf, kwnames);
        }
    }
    Binding binding;
    Found found;
    int status = find_for_call(self, activation, args, nargsf, kwnames, &binding, &found);
    if (status < 0) {
        return NULL;
    }
    if (status == 0) {
        return call_hooked(self, activation, args, nargsf, kwnames);
    }
    int nargs = code_argument_count((PyCodeObject *)found.entry->code);
    PyObject *result = call_entry(self, activation, &found, binding.args, nargs);
    Py_DECREF(found.entry);
    bind_release(&binding);
    return result;
}

/* ---- the type ---- */

static int validate(PyObject *function, PyObject *callback, PyObject *on_eager)
{
    if (!PyFunction_Check(function)) {
        PyErr_Format(PyExc_TypeError, "CompiledFunction: expected a Python function, not %.200s", Py_TYPE(function)->tp_name);
        return -1;
    }
    if (!PyCallable_Check(callback)) {
        PyErr_Format(PyExc_TypeError, "CompiledFunction: the callback must be callable, not %.200s",
                     Py_TYPE(callback)->tp_name);
        return -1;
    }
    if (on_eager != Py_None && !PyCallable_Check(on_eager)) {
        PyErr_Format(PyExc_TypeError, "CompiledFunction: on_eager must be callable or None, not %.200s",
                     Py_TYPE(on_eager)->tp_name);
        return -1;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
        PyErr_Format(PyExc_TypeError,
                     "CompiledFunction: %U is a generator or coroutine function; frames of those are not replaced",
                     code->co_qualname);
        return -1;
    }
    return 0;
}

static void compiled_link(CompiledFunction *self)
{
    self->next = all_compiled;
    if (all_compiled != NULL) {
        all_compiled->previous = self;
    }
    all_compiled = self;
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "callback", "cache", "on_eager", "refuses", NULL};
    PyObject *function, *callback, *on_eager = Py_None;
    CacheArgument cache = {0};
    int refuses = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$O&Op:CompiledFunction", names, &function, &callback, cache_argument,
                                     &cache, &on_eager, &refuses) ||
        validate(function, callback, on_eager) < 0 || (!cache.given && callback_cache(callback, &cache.id) < 0)) {
        return NULL;
    }
    CompiledFunction *self = (CompiledFunction *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->base.vectorcall = compiled_vectorcall;
        self->base.wrapped = Py_NewRef(function);
        self->callback = Py_NewRef(callback);
        self->on_eager = on_eager == Py_None ? NULL : Py_NewRef(on_eager);
        self->refuses = (char)(refuses && self->on_eager != NULL);
        self->cache_id = cache.id;
        compiled_link(self);
    }
    return (PyObject *)self;
}

static int compiled_traverse(CompiledFunction *self, visitproc visit, void *arg)
{
    Py_VISIT(self->callback);
    Py_VISIT(self->on_eager);
    Py_VISIT(self->functions);
    return wrapper_traverse(&self->base, visit, arg);
}

static int compiled_clear(CompiledFunction *self)
{
    forget_functions(self);
    return wrapper_clear(&self->base);
}

static void compiled_dealloc(CompiledFunction *self)
{
    PyObject_GC_UnTrack(self);
    if (self->previous != NULL) {
        self->previous->next = self->next;
    }
    else {
        all_compiled = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    forget_functions(self);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->on_eager);
    wrapper_dealloc((PyObject *)self);
}

static PyObject *compiled_repr(CompiledFunction *self)
{
    return PyUnicode_FromFormat("<CompiledFunction %U at %p>", ((PyFunctionObject *)self->base.wrapped)->func_qualname, self);
}

static PyMemberDef compiled_members[] = {
    {"callback", T_OBJECT_EX, offsetof(CompiledFunction, callback), READONLY, NULL},
    {"cache", T_ULONGLONG, offsetof(CompiledFunction, cache_id), READONLY, NULL},
    {"on_eager", T_OBJECT, offsetof(CompiledFunction, on_eager), READONLY, NULL},
    {"refuses", T_BOOL, offsetof(CompiledFunction, refuses), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CompiledFunction_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.CompiledFunction",
    .tp_basicsize = sizeof(CompiledFunction),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = compiled_new,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),
    .tp_descr_get = wrapper_bind_method,
    .tp_getattro = wrapper_getattro,
    .tp_getset = wrapper_getset,
    .tp_methods = wrapper_methods,
    .tp_members = compiled_members,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_dictoffset = offsetof(Wrapper, dict),
    .tp_weaklistoffset = offsetof(Wrapper, weakrefs),
};

void compiled_functions_init(void) { reset_listener = reset_functions; }
