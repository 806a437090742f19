#include "data/records.h"

#include "data/code_state.h"
#include <structmember.h>

int code_argument_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* ---- Entry ---- */

static int resolve_extract(Entry *entry)
{
    entry->extract = PyObject_GetAttrString(entry->check, "extract");
    if (entry->extract == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    if (entry->extract == NULL || !PyCallable_Check(entry->extract)) {
        PyErr_Format(PyExc_TypeError,
                     "Entry: with inputs=True, check must have " FRAMESMITH_CHECK_ATTRIBUTE
                     " or a method extract(args, function); a %.200s has neither",
                     Py_TYPE(entry->check)->tp_name);
        return -1;
    }
    return 0;
}

static int resolve_check(Entry *entry)
{
    PyObject *capsule = PyObject_GetAttrString(entry->check, FRAMESMITH_CHECK_ATTRIBUTE);
    if (capsule == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        if (!entry->inputs && !PyCallable_Check(entry->check)) {
            PyErr_Format(PyExc_TypeError,
                         "Entry: check must be callable as check(args, function) or have " FRAMESMITH_CHECK_ATTRIBUTE
                         ", not %.200s",
                         Py_TYPE(entry->check)->tp_name);
            return -1;
        }
        return entry->inputs ? resolve_extract(entry) : 0;
    }
    const framesmith_check_v1 *native = PyCapsule_GetPointer(capsule, FRAMESMITH_CHECK_CAPSULE);
    if (native != NULL && native->version == FRAMESMITH_CHECK_VERSION && native->check != NULL) {
        entry->native = native;
        entry->capsule = capsule;
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "Entry: " FRAMESMITH_CHECK_ATTRIBUTE " of a %.200s must be a capsule named \"" FRAMESMITH_CHECK_CAPSULE
                 "\" with version %d",
                 Py_TYPE(entry->check)->tp_name, FRAMESMITH_CHECK_VERSION);
    Py_DECREF(capsule);
    return -1;
}

static int validate_entry_code(PyCodeObject *code)
{
    if ((code->co_flags & (CO_OPTIMIZED | CO_NEWLOCALS)) != (CO_OPTIMIZED | CO_NEWLOCALS)) {
        PyErr_Format(PyExc_ValueError, "Entry: code %R is not a function's (it lacks CO_OPTIMIZED or CO_NEWLOCALS)", code);
        return -1;
    }
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
        PyErr_Format(PyExc_ValueError, "Entry: code %R is a generator's or a coroutine's; frames of those are not replaced",
                     code);
        return -1;
    }
    return 0;
}

/* The inputs go into the slot after the arguments, which must be a local variable: no cell, no free variable. */
static int validate_inputs_slot(PyCodeObject *code)
{
    int slot = code_argument_count(code);
    if (slot >= code->co_nlocalsplus || PyBytes_AS_STRING(code->co_localspluskinds)[slot] != CO_FAST_LOCAL) {
        PyErr_Format(PyExc_ValueError,
                     "Entry: with inputs=True, the first local variable of code %U after its %d arguments receives the inputs; "
                     "it has no local there that is not a cell",
                     code->co_qualname, slot);
        return -1;
    }
    return 0;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"check", "code", "complete", "inputs", "eager", NULL};
    PyObject *check, *code, *eager = Py_None;
    int complete = 0, inputs = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|$ppO:Entry", names, &check, &PyCode_Type, &code, &complete, &inputs,
                                     &eager)) {
        return NULL;
    }
    if (eager != Py_None && !PyUnicode_Check(eager)) {
        return PyErr_Format(PyExc_TypeError, "Entry: eager must be a str or None, not %.200s", Py_TYPE(eager)->tp_name);
    }
    if (validate_entry_code((PyCodeObject *)code) < 0 || (inputs && validate_inputs_slot((PyCodeObject *)code) < 0)) {
        return NULL;
    }
    Entry *entry = (Entry *)type->tp_alloc(type, 0);
    if (entry == NULL) {
        return NULL;
    }
    entry->check = Py_NewRef(check);
    entry->code = Py_NewRef(code);
    entry->complete = (char)complete;
    entry->inputs = (char)inputs;
    entry->eager = eager == Py_None ? NULL : Py_NewRef(eager);
    if (resolve_check(entry) < 0) {
        Py_DECREF(entry);
        return NULL;
    }
    return (PyObject *)entry;
}

static int entry_traverse(Entry *entry, visitproc visit, void *arg)
{
    Py_VISIT(entry->check);
    Py_VISIT(entry->code);
    Py_VISIT(entry->flat_code);
    Py_VISIT(entry->capsule);
    Py_VISIT(entry->extract);
    return 0;
}

static void entry_dealloc(Entry *entry)
{
    PyObject_GC_UnTrack(entry);
    if (entry->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)entry);
    }
    Py_CLEAR(entry->check);
    Py_CLEAR(entry->code);
    Py_CLEAR(entry->flat_code);
    Py_CLEAR(entry->capsule);
    Py_CLEAR(entry->extract);
    Py_CLEAR(entry->eager);
    Py_TYPE(entry)->tp_free(entry);
}

static PyObject *entry_repr(Entry *entry)
{
    return PyUnicode_FromFormat("<Entry of %U: %s, %llu hits>", ((PyCodeObject *)entry->code)->co_qualname,
                                entry->complete ? "complete" : "with breaks", entry->hits);
}

static PyMemberDef entry_members[] = {
    {"check", T_OBJECT_EX, offsetof(Entry, check), READONLY, NULL},
    {"code", T_OBJECT_EX, offsetof(Entry, code), READONLY, NULL},
    {"complete", T_BOOL, offsetof(Entry, complete), READONLY, NULL},
    {"inputs", T_BOOL, offsetof(Entry, inputs), READONLY, NULL},
    {"eager", T_OBJECT, offsetof(Entry, eager), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *get_flat_code(Entry *entry, void *unused) { return Py_XNewRef(entry_flat_code(entry)); }

static PyGetSetDef entry_getset[] = {
    {"flat_code", (getter)get_flat_code, NULL, "The code with every argument positional, as compiled functions call it.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* No tp_clear: an entry's fields never change, and all its cycles pass through its checker. */
PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_repr = (reprfunc)entry_repr,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_doc = "Entry(check, code, *, complete=False, inputs=False, eager=None): code to run in place of a frame to which the check "
              "applies. eager: None if the code computes something compiled, '' if there is nothing to compute, else why it "
              "computes nothing compiled.",
};

int entry_fits(Entry *entry, PyCodeObject *code)
{
    PyCodeObject *own = (PyCodeObject *)entry->code;
    int variadic = CO_VARARGS | CO_VARKEYWORDS;
    if (own->co_argcount != code->co_argcount || own->co_kwonlyargcount != code->co_kwonlyargcount ||
        (own->co_flags & variadic) != (code->co_flags & variadic)) {
        PyErr_Format(PyExc_ValueError,
                     "Entry: code %U takes %d positional, %d keyword-only arguments and flags %d; the frame's code %U takes %d, %d "
                     "and flags %d",
                     own->co_qualname, own->co_argcount, own->co_kwonlyargcount, own->co_flags & variadic,
                     code->co_qualname, code->co_argcount, code->co_kwonlyargcount, code->co_flags & variadic);
        return -1;
    }
    PyObject *mine = PyCode_GetFreevars(own);
    PyObject *theirs = PyCode_GetFreevars(code);
    int same = mine == NULL || theirs == NULL ? -1 : PyObject_RichCompareBool(mine, theirs, Py_EQ);
    if (same == 0) {
        PyErr_Format(PyExc_ValueError, "Entry: code %U has free variables %R; the frame's code %U has %R", own->co_qualname,
                     mine, code->co_qualname, theirs);
    }
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return same == 1 ? 0 : -1;
}

static PyObject *call_checker(PyObject *callable, PyObject *const *args, Py_ssize_t nargs, PyObject *function)
{
    PyObject *values = PyTuple_New(nargs);
    if (values == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(values, i, Py_NewRef(args[i]));
    }
    PyObject *call[] = {values, function};
    PyObject *answer = PyObject_Vectorcall(callable, call, 2, NULL);
    Py_DECREF(values);
    return answer;
}

static int check_in_python(Entry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **inputs)
{
    PyObject *answer = call_checker(entry->inputs ? entry->extract : entry->check, args, nargs, function);
    if (answer == NULL) {
        return -1;
    }
    if (entry->inputs && answer != Py_None) {
        *inputs = answer;
        return 1;
    }
    int status = entry->inputs ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return status;
}

static int check_natively(Entry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **inputs)
{
    int status = entry->native->check(entry->check, args, nargs, function, entry->inputs ? inputs : NULL);
    if (status < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a native checker returned -1 without an exception");
    }
    return status;
}

int entry_check(Entry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **inputs)
{
    *inputs = NULL;
    int status = entry->native == NULL ? check_in_python(entry, args, nargs, function, inputs)
                                       : check_natively(entry, args, nargs, function, inputs);
    if (entry->inputs && status > 0 && (*inputs == NULL || !PyTuple_CheckExact(*inputs))) {
        PyErr_Format(PyExc_TypeError, "a checker of an entry with inputs must return a tuple of them, not %.200s",
                     *inputs == NULL ? "nothing" : Py_TYPE(*inputs)->tp_name);
        status = -1;
    }
    if (status <= 0) {
        Py_CLEAR(*inputs);
    }
    return status;
}

static PyObject *flattened(PyCodeObject *code, int inputs)
{
    PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace");
    PyObject *no_arguments = PyTuple_New(0);
    PyObject *changes = Py_BuildValue("{s:i,s:i,s:i,s:i}", "co_argcount", code_argument_count(code) + inputs,
                                      "co_posonlyargcount", 0, "co_kwonlyargcount", 0, "co_flags",
                                      code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
    PyObject *flat = NULL;
    if (replace != NULL && no_arguments != NULL && changes != NULL) {
        flat = PyObject_Call(replace, no_arguments, changes);
    }
    Py_XDECREF(replace);
    Py_XDECREF(no_arguments);
    Py_XDECREF(changes);
    return flat;
}

/* The code with all arguments positional: called with a frame's arguments, in which *args is already one tuple. Names and
 * slots are unchanged. The local for the inputs follows the arguments, so it becomes one more of them. */
PyObject *entry_flat_code(Entry *entry)
{
    if (entry->flat_code != NULL) {
        return entry->flat_code;
    }
    PyCodeObject *code = (PyCodeObject *)entry->code;
    if (!entry->inputs && code->co_kwonlyargcount == 0 && (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0) {
        entry->flat_code = Py_NewRef(code);
        return entry->flat_code;
    }
    PyObject *flat = flattened(code, entry->inputs);
    CodeState *state = flat == NULL ? NULL : code_state_get((PyCodeObject *)flat);
    CodeState *original = code_state_find(code);
    if (state == NULL) {
        Py_XDECREF(flat);
        return NULL;
    }
    code_state_mark(state, MARKED_RESIDUAL, original == NULL ? NULL : original->mark_reason);
    Py_XSETREF(entry->flat_code, flat);
    return flat;
}

/* ---- SKIP and RUN_ONCE ---- */

static PyObject *answer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reason", "quiet", "recursive", "returned", NULL};
    static char *names_of_skip[] = {"reason", "quiet", "recursive", NULL};
    PyObject *reason, *returned = Py_None;
    int quiet = 0, recursive = 0;
    int parsed = type == &Skip_Type
                     ? PyArg_ParseTupleAndKeywords(args, kwargs, "U|$pp", names_of_skip, &reason, &quiet, &recursive)
                     : PyArg_ParseTupleAndKeywords(args, kwargs, "U|$ppO", names, &reason, &quiet, &recursive, &returned);
    if (!parsed) {
        return NULL;
    }
    if (returned != Py_None && !PyCallable_Check(returned)) {
        return PyErr_Format(PyExc_TypeError, "RUN_ONCE: returned is a callable or None, not %.200s", Py_TYPE(returned)->tp_name);
    }
    Answer *answer = (Answer *)type->tp_alloc(type, 0);
    if (answer != NULL) {
        answer->reason = Py_NewRef(reason);
        answer->quiet = (char)quiet;
        answer->recursive = (char)recursive;
        answer->returned = returned == Py_None ? NULL : Py_NewRef(returned);
    }
    return (PyObject *)answer;
}

static int answer_traverse(Answer *answer, visitproc visit, void *arg)
{
    Py_VISIT(answer->returned);
    return 0;
}

static void answer_dealloc(Answer *answer)
{
    PyObject_GC_UnTrack(answer);
    Py_CLEAR(answer->reason);
    Py_CLEAR(answer->returned);
    Py_TYPE(answer)->tp_free(answer);
}

static PyObject *answer_repr(Answer *answer)
{
    return PyUnicode_FromFormat("%s(%R)", strrchr(Py_TYPE(answer)->tp_name, '.') + 1, answer->reason);
}

static PyMemberDef run_once_members[] = {
    {"reason", T_OBJECT_EX, offsetof(Answer, reason), READONLY, NULL},
    {"quiet", T_BOOL, offsetof(Answer, quiet), READONLY, NULL},
    {"recursive", T_BOOL, offsetof(Answer, recursive), READONLY, NULL},
    {"returned", T_OBJECT, offsetof(Answer, returned), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef skip_members[] = {
    {"reason", T_OBJECT_EX, offsetof(Answer, reason), READONLY, NULL},
    {"quiet", T_BOOL, offsetof(Answer, quiet), READONLY, NULL},
    {"recursive", T_BOOL, offsetof(Answer, recursive), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject Skip_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.SKIP",
    .tp_basicsize = sizeof(Answer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = answer_new,
    .tp_traverse = (traverseproc)answer_traverse,
    .tp_dealloc = (destructor)answer_dealloc,
    .tp_repr = (reprfunc)answer_repr,
    .tp_members = skip_members,
    .tp_doc = "SKIP(reason, *, quiet=False, recursive=False): run this code eagerly and do not offer it again until a reset; "
              "with recursive, the functions that it calls neither.",
};

PyTypeObject RunOnce_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.RUN_ONCE",
    .tp_basicsize = sizeof(Answer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = answer_new,
    .tp_traverse = (traverseproc)answer_traverse,
    .tp_dealloc = (destructor)answer_dealloc,
    .tp_repr = (reprfunc)answer_repr,
    .tp_members = run_once_members,
    .tp_doc = "RUN_ONCE(reason, *, quiet=False, recursive=False, returned=None): run this call eagerly and offer the next one; with "
              "recursive, the functions that it calls run eagerly as well. `returned` is called if this one returns and does "
              "not raise.",
};

/* ---- FrameInfo ---- */

typedef struct {
    PyObject_HEAD
    PyObject *code;
    PyObject *function;
    PyObject *arguments;
    PyObject *globals;
    PyObject *builtins;
    PyObject *closure;
    unsigned long long cache_id;
} FrameInfo;

PyObject *frame_info_new(const Call *call, unsigned long long cache_id)
{
    Py_ssize_t nargs = code_argument_count(call->code);
    PyObject *arguments = PyTuple_New(nargs);
    if (arguments == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(call->args[i]));
    }
    FrameInfo *info = (FrameInfo *)FrameInfo_Type.tp_alloc(&FrameInfo_Type, 0);
    if (info == NULL) {
        Py_DECREF(arguments);
        return NULL;
    }
    PyFunctionObject *called = (PyFunctionObject *)call->function;
    info->code = Py_NewRef((PyObject *)call->code);
    info->function = Py_NewRef(call->function);
    info->arguments = arguments;
    info->globals = Py_NewRef(called->func_globals);
    info->builtins = Py_NewRef(called->func_builtins);
    info->cache_id = cache_id;
    info->closure = Py_NewRef(called->func_closure == NULL ? Py_None : called->func_closure);
    return (PyObject *)info;
}

static int frame_info_clear(FrameInfo *info)
{
    Py_CLEAR(info->code);
    Py_CLEAR(info->function);
    Py_CLEAR(info->arguments);
    Py_CLEAR(info->globals);
    Py_CLEAR(info->builtins);
    Py_CLEAR(info->closure);
    return 0;
}

static int frame_info_traverse(FrameInfo *info, visitproc visit, void *arg)
{
    Py_VISIT(info->code);
    Py_VISIT(info->function);
    Py_VISIT(info->arguments);
    Py_VISIT(info->globals);
    Py_VISIT(info->builtins);
    Py_VISIT(info->closure);
    return 0;
}

static void frame_info_dealloc(FrameInfo *info)
{
    PyObject_GC_UnTrack(info);
    frame_info_clear(info);
    Py_TYPE(info)->tp_free(info);
}

static PyObject *frame_info_repr(FrameInfo *info)
{
    PyCodeObject *code = (PyCodeObject *)info->code;
    return PyUnicode_FromFormat("<FrameInfo of %U at %U:%d>", code->co_qualname, code->co_filename, code->co_firstlineno);
}

static PyMemberDef frame_info_members[] = {
    {"code", T_OBJECT_EX, offsetof(FrameInfo, code), READONLY, NULL},
    {"function", T_OBJECT_EX, offsetof(FrameInfo, function), READONLY, NULL},
    {"arguments", T_OBJECT_EX, offsetof(FrameInfo, arguments), READONLY, NULL},
    {"globals", T_OBJECT_EX, offsetof(FrameInfo, globals), READONLY, NULL},
    {"builtins", T_OBJECT_EX, offsetof(FrameInfo, builtins), READONLY, NULL},
    {"closure", T_OBJECT_EX, offsetof(FrameInfo, closure), READONLY, NULL},
    {"cache", T_ULONGLONG, offsetof(FrameInfo, cache_id), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *frame_info_locals(FrameInfo *info, void *unused)
{
    int status = PyErr_WarnEx(PyExc_DeprecationWarning, "FrameInfo.locals is now FrameInfo.arguments", 1);
    return status < 0 ? NULL : Py_NewRef(info->arguments);
}

static PyGetSetDef frame_info_getset[] = {
    {"locals", (getter)frame_info_locals, NULL, "The former name of `arguments`.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject FrameInfo_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framesmith_frames.FrameInfo",
    .tp_basicsize = sizeof(FrameInfo),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)frame_info_traverse,
    .tp_clear = (inquiry)frame_info_clear,
    .tp_dealloc = (destructor)frame_info_dealloc,
    .tp_repr = (reprfunc)frame_info_repr,
    .tp_members = frame_info_members,
    .tp_getset = frame_info_getset,
    .tp_doc = "A call about to run: code, function, arguments, globals, builtins, closure.",
};
