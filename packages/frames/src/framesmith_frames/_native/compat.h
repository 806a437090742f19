/* The differences between CPython 3.11 to 3.15; no other file asks for the version. */
#ifndef FRAMESMITH_COMPAT_H
#define FRAMESMITH_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x03100000
#error "framesmith_frames supports CPython 3.11 to 3.15 only"
#endif
#ifdef Py_GIL_DISABLED
#error "framesmith_frames does not support free-threaded CPython"
#endif

#define Py_BUILD_CORE 1
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#if PY_VERSION_HEX >= 0x030D0000
#include "internal/pycore_runtime.h"
#endif
#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000
#include "internal/pycore_optimizer.h"
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_ceval.h"
#include "internal/pycore_interpframe.h"
#endif
#if PY_VERSION_HEX >= 0x030F0000
#include "internal/pycore_lazyimportobject.h"
#endif
#undef Py_BUILD_CORE

#include <opcode.h>

typedef struct _PyInterpreterFrame Frame;

/* Whether a call site that is specialised for its class enters `__init__` without asking a hook. */
#define SPECIALISED_INIT_BYPASSES_HOOK (PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000)

/* The layout of a frame: ITEM(name, size or offset in the headers of the build, the same in the running interpreter). One
 * binary serves all patch releases, and CPython promises no layout. From 3.13 on, it reports its own, for debuggers. */
#if PY_VERSION_HEX < 0x030D0000
#define FRAME_LAYOUT(ITEM)
#else
#define REPORTED(name) _PyRuntime.debug_offsets.interpreter_frame.name
#if PY_VERSION_HEX < 0x030E0000
#define FRAME_STACK_LAYOUT(ITEM)
#else
#define FRAME_STACK_LAYOUT(ITEM)                                                                                               \
    ITEM("stackpointer", offsetof(Frame, stackpointer), REPORTED(stackpointer))                                                \
    ITEM("tlbc_index", 0, REPORTED(tlbc_index)) /* 0: frames of builds with the GIL have no such field */
#endif
#define FRAME_LAYOUT(ITEM)                                                                                                     \
    ITEM("size", sizeof(Frame), REPORTED(size))                                                                                \
    ITEM("previous", offsetof(Frame, previous), REPORTED(previous))                                                            \
    ITEM("executable", offsetof(Frame, f_executable), REPORTED(executable))                                                    \
    ITEM("instr_ptr", offsetof(Frame, instr_ptr), REPORTED(instr_ptr))                                                         \
    ITEM("localsplus", offsetof(Frame, localsplus), REPORTED(localsplus))                                                      \
    ITEM("owner", offsetof(Frame, owner), REPORTED(owner))                                                                     \
    FRAME_STACK_LAYOUT(ITEM)
#endif

/* Frame fields. From 3.14 on, the references in a frame are tagged, see Note [Tagged references]. */
#if PY_VERSION_HEX < 0x030C0000

static inline PyCodeObject *frame_code(Frame *frame) { return frame->f_code; }
static inline PyObject *frame_function(Frame *frame) { return (PyObject *)frame->f_func; }
static inline void frame_set_function(Frame *frame, PyObject *function)
{
    Py_SETREF(frame->f_func, (PyFunctionObject *)function);
}
static inline int code_frame_size(PyCodeObject *code)
{
    return code->co_nlocalsplus + code->co_stacksize + (int)FRAME_SPECIALS_SIZE;
}

#else

#if PY_VERSION_HEX < 0x030D0000
static inline PyCodeObject *frame_code(Frame *frame) { return frame->f_code; }
static inline PyObject *frame_function(Frame *frame) { return frame->f_funcobj; }
static inline void frame_set_function(Frame *frame, PyObject *function) { Py_SETREF(frame->f_funcobj, function); }
#elif PY_VERSION_HEX < 0x030E0000
static inline PyCodeObject *frame_code(Frame *frame) { return (PyCodeObject *)frame->f_executable; }
static inline PyObject *frame_function(Frame *frame) { return frame->f_funcobj; }
static inline void frame_set_function(Frame *frame, PyObject *function) { Py_SETREF(frame->f_funcobj, function); }
#else
static inline PyCodeObject *frame_code(Frame *frame)
{
    return (PyCodeObject *)PyStackRef_AsPyObjectBorrow(frame->f_executable);
}
static inline PyObject *frame_function(Frame *frame) { return PyStackRef_AsPyObjectBorrow(frame->f_funcobj); }
#endif

static inline int code_frame_size(PyCodeObject *code) { return code->co_framesize; }

#endif

/* The next instruction. `frame_is_fresh`: none has run yet, so the first locals are the arguments. */
#if PY_VERSION_HEX < 0x030D0000
static inline void frame_rewind(Frame *frame, PyCodeObject *code) { frame->prev_instr = _PyCode_CODE(code) - 1; }
static inline int frame_is_fresh(Frame *frame) { return frame->prev_instr == _PyCode_CODE(frame->f_code) - 1; }
static inline void frame_go_to(Frame *frame, _Py_CODEUNIT *next) { frame->prev_instr = next - 1; }

#define Py_IsFinalizing _Py_IsFinalizing
#else
static inline void frame_rewind(Frame *frame, PyCodeObject *code) { frame->instr_ptr = _PyCode_CODE(code); }
static inline int frame_is_fresh(Frame *frame) { return frame->instr_ptr == _PyCode_CODE(frame_code(frame)); }
static inline void frame_go_to(Frame *frame, _Py_CODEUNIT *next) { frame->instr_ptr = next; }
#endif

/* Arguments, and writing to a frame that has not begun.
 *
 * frame_set_code      its next instruction is the first of the code, its stack is empty; the old code is released
 * frame_set_function  takes the function; the old one is released
 * frame_set_local     takes the value, or NULL; what the slot held is forgotten
 *
 * Note [Tagged references]: from 3.14 on, a frame holds no pointers to objects but pointers with a tag, which says that the
 * frame owns no count: the object is immortal, or another frame keeps it alive. `frame_arguments` returns pointers without
 * tags, borrowed from the frame: from 3.14 on a copy, in `room`, which has ROOM_FOR_ARGUMENTS(count) elements. */
#if PY_VERSION_HEX < 0x030E0000

#define ROOM_FOR_ARGUMENTS(count) 1

static inline PyObject *const *frame_arguments(Frame *frame, PyObject **room, int count) { return frame->localsplus; }
static inline PyObject *frame_local(Frame *frame, int index) { return frame->localsplus[index]; }
static inline void frame_set_local(Frame *frame, int index, PyObject *value) { frame->localsplus[index] = value; }
static inline void frame_set_code(Frame *frame, PyCodeObject *code)
{
    PyCodeObject *old = frame_code(frame);
    Py_INCREF(code);
#if PY_VERSION_HEX < 0x030D0000
    frame->f_code = code;
#else
    frame->f_executable = (PyObject *)code;
#endif
    frame->stacktop = code->co_nlocalsplus;
    frame_rewind(frame, code);
    Py_DECREF(old);
}

#else

#define ROOM_FOR_ARGUMENTS(count) ((count) + 1)

static inline PyObject *frame_local(Frame *frame, int index)
{
    return PyStackRef_AsPyObjectBorrow(frame->localsplus[index]);
}
static inline PyObject *const *frame_arguments(Frame *frame, PyObject **room, int count)
{
    for (int i = 0; i < count; i++) {
        room[i] = frame_local(frame, i);
    }
    return room;
}
static inline void frame_set_local(Frame *frame, int index, PyObject *value)
{
    frame->localsplus[index] = value == NULL ? PyStackRef_NULL : PyStackRef_FromPyObjectSteal(value);
}
static inline void frame_set_code(Frame *frame, PyCodeObject *code)
{
    _PyStackRef old = frame->f_executable;
    frame->f_executable = PyStackRef_FromPyObjectNew(code);
    frame->stackpointer = frame->localsplus + code->co_nlocalsplus;
    frame_rewind(frame, code);
    PyStackRef_CLOSE(old);
}
static inline void frame_set_function(Frame *frame, PyObject *function)
{
    _PyStackRef old = frame->f_funcobj;
    frame->f_funcobj = PyStackRef_FromPyObjectSteal(function);
    PyStackRef_CLOSE(old);
}

#endif

/* From 3.12 on, each evaluator on the C stack costs two units of a small budget of C recursion. With a hook every Python call
 * is such an evaluator, so programs within their own recursion limit would fail. The hook returns the units and measures the
 * real C stack instead: Note [C stack] in hook/evaluator.c. From 3.14 on, CPython measures the C stack too. */
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
#define EVALUATOR_UNITS 2
#define GIVE_BACK_RECURSION(tstate) ((tstate)->c_recursion_remaining += EVALUATOR_UNITS)
#define TAKE_RECURSION(tstate) ((tstate)->c_recursion_remaining -= EVALUATOR_UNITS)
#else
#define GIVE_BACK_RECURSION(tstate) ((void)(tstate))
#define TAKE_RECURSION(tstate) ((void)(tstate))
#endif

/* Clears a frame that will not run, as the evaluator clears one that has run. No exception is set.
 *
 * On 3.11 the caller of the evaluator clears the frame. 3.12 and 3.13 export no function for it: a value is pushed, the frame
 * pointed at a static RETURN_VALUE, and the evaluator finishes it. That instruction is in no code object, so no tracing or
 * monitoring tool sees it. */
#if PY_VERSION_HEX < 0x030C0000
static inline void frame_discard(PyThreadState *tstate, Frame *frame) {}
#elif PY_VERSION_HEX < 0x030E0000
static inline void frame_discard(PyThreadState *tstate, Frame *frame)
{
    static _Py_CODEUNIT instructions[2] = {{.op = {.code = RETURN_VALUE}}, {.op = {.code = RETURN_VALUE}}};
    frame->localsplus[frame->stacktop++] = Py_NewRef(Py_None);
    frame_go_to(frame, &instructions[1]);
    GIVE_BACK_RECURSION(tstate);
    PyObject *none = _PyEval_EvalFrameDefault(tstate, frame, 0);
    TAKE_RECURSION(tstate);
    if (none == NULL) {
        PyErr_Clear(); /* the recursion limit; the frame is cleared nevertheless */
    }
    Py_XDECREF(none);
}
#else
static inline void frame_discard(PyThreadState *tstate, Frame *frame) { _PyEval_FrameClearAndPop(tstate, frame); }
#endif

/* 1, 0 or -1. An interpreter has its JIT on or off for its whole life. 3.13 reports no state: 1 for each build with a JIT. */
#if PY_VERSION_HEX < 0x030D0000
static inline int jit_is_enabled(void) { return 0; }
#elif PY_VERSION_HEX < 0x030E0000
#pragma weak _PyOptimizer_Optimize /* only builds with a JIT have it */

static inline int jit_is_enabled(void) { return _PyOptimizer_Optimize != NULL; }
#else
static inline int jit_is_enabled(void)
{
    PyObject *jit = PySys_GetObject("_jit"); /* borrowed */
    PyObject *answer = jit == NULL ? Py_NewRef(Py_False) : PyObject_CallMethod(jit, "is_enabled", NULL);
    int status = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return status;
}
#endif

/* Whether a type is that of what a name holds before its first use, after `lazy import` of 3.15. */
static inline int is_lazy_import_type(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030F0000
    return 0;
#else
    return type == &PyLazyImport_Type;
#endif
}

static inline int weakref_refers_to(PyObject *reference, PyObject *object)
{
#if PY_VERSION_HEX < 0x030D0000
    return PyWeakref_GetObject(reference) == object;
#else
    PyObject *alive = NULL;
    int same = PyWeakref_GetRef(reference, &alive) > 0 && alive == object;
    Py_XDECREF(alive);
    return same;
#endif
}

#if PY_VERSION_HEX < 0x030C0000
#define request_code_extra_index _PyEval_RequestCodeExtraIndex
#define get_code_extra _PyCode_GetExtra
#define set_code_extra _PyCode_SetExtra

/* The functions of 3.12: the current exception as one object. */
static inline PyObject *PyErr_GetRaisedException(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

static inline void PyErr_SetRaisedException(PyObject *value)
{
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(value)), value, PyException_GetTraceback(value));
}

#define SUBINTERPRETERS_ARE_REFUSED
#else
#define request_code_extra_index PyUnstable_Eval_RequestCodeExtraIndex
#define get_code_extra PyUnstable_Code_GetExtra
#define set_code_extra PyUnstable_Code_SetExtra

/* A slot of the module definition. */
#define SUBINTERPRETERS_ARE_REFUSED {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif

#endif
