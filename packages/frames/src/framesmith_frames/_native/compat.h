/* The differences between CPython 3.11, 3.12 and 3.13; no other file asks for the version. */
#ifndef FRAMESMITH_COMPAT_H
#define FRAMESMITH_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "framesmith_frames supports CPython 3.11, 3.12 and 3.13 only"
#endif
#ifdef Py_GIL_DISABLED
#error "framesmith_frames does not support free-threaded CPython"
#endif

#define Py_BUILD_CORE 1
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#undef Py_BUILD_CORE

#include <opcode.h>

typedef struct _PyInterpreterFrame Frame;

/* Frame fields. */
#if PY_VERSION_HEX < 0x030C0000

static inline PyCodeObject *frame_code(Frame *frame) { return frame->f_code; }
static inline PyObject *frame_function(Frame *frame) { return (PyObject *)frame->f_func; }
static inline void frame_set_code(Frame *frame, PyCodeObject *code) { frame->f_code = code; }
static inline int code_frame_size(PyCodeObject *code)
{
    return code->co_nlocalsplus + code->co_stacksize + (int)FRAME_SPECIALS_SIZE;
}

#elif PY_VERSION_HEX < 0x030D0000

static inline PyCodeObject *frame_code(Frame *frame) { return frame->f_code; }
static inline PyObject *frame_function(Frame *frame) { return frame->f_funcobj; }
static inline void frame_set_code(Frame *frame, PyCodeObject *code) { frame->f_code = code; }
static inline int code_frame_size(PyCodeObject *code) { return code->co_framesize; }

#else

static inline PyCodeObject *frame_code(Frame *frame) { return (PyCodeObject *)frame->f_executable; }
static inline PyObject *frame_function(Frame *frame) { return frame->f_funcobj; }
static inline void frame_set_code(Frame *frame, PyCodeObject *code) { frame->f_executable = (PyObject *)code; }
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
static inline int frame_is_fresh(Frame *frame)
{
    return frame->instr_ptr == _PyCode_CODE((PyCodeObject *)frame->f_executable);
}
static inline void frame_go_to(Frame *frame, _Py_CODEUNIT *next) { frame->instr_ptr = next; }

#endif

/* On 3.11 the caller of the evaluator clears the frame, later the evaluator itself, before it returns. */
#define EVALUATOR_CLEARS_FRAME (PY_VERSION_HEX >= 0x030C0000)

/* From 3.12 on, each evaluator on the C stack costs two units of a small budget of C recursion. With a hook every Python call
 * is such an evaluator, so programs within their own recursion limit would fail. The hook returns the units and measures the
 * real C stack instead: Note [C stack] in hook/evaluator.c. */
#if PY_VERSION_HEX >= 0x030C0000
#define EVALUATOR_UNITS 2
#define GIVE_BACK_RECURSION(tstate) ((tstate)->c_recursion_remaining += EVALUATOR_UNITS)
#define TAKE_RECURSION(tstate) ((tstate)->c_recursion_remaining -= EVALUATOR_UNITS)
#else
#define GIVE_BACK_RECURSION(tstate) ((void)(tstate))
#define TAKE_RECURSION(tstate) ((void)(tstate))
#endif

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
#else
#define request_code_extra_index PyUnstable_Eval_RequestCodeExtraIndex
#define get_code_extra PyUnstable_Code_GetExtra
#define set_code_extra PyUnstable_Code_SetExtra
#endif

#endif
