/* One instruction of a guard program. Its numbers are shared with lowering.py through the module's OPCODES dict. */
#ifndef FRAMESMITH_GUARDS_INSTRUCTION_H
#define FRAMESMITH_GUARDS_INSTRUCTION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* The loads come first: OP_FIRST_CHECK is the first instruction that loads nothing. */
#define FOR_EACH_OPCODE(X)                                                                                            \
    X(LOAD_ARG)      /* dst = args[n] */                                                                              \
    X(LOAD_CONSTANT) /* dst = obj */                                                                                  \
    X(LOAD_FUNCTION) /* dst = function */                                                                             \
    X(LOAD_GLOBALS)  /* dst = function.__globals__ */                                                                 \
    X(LOAD_BUILTIN)  /* dst = function.__builtins__[obj] */                                                           \
    X(LOAD_CLOSURE)  /* dst = function.__closure__[n].cell_contents */                                                \
    X(LOAD_ATTR)     /* dst = a.obj */                                                                                \
    X(LOAD_DICT)     /* dst = a.__dict__ */                                                                           \
    X(LOAD_ITEM)     /* dst = a[obj] */                                                                               \
    X(LOAD_TYPE)     /* dst = type(a) */                                                                              \
    X(LOAD_KEY)      /* dst = list(dict.keys(a))[n] */                                                                \
    X(LOAD_VALUE)    /* dst = list(dict.values(a))[n] */                                                              \
    X(LOAD_CELL)     /* dst = a.cell_contents */                                                                      \
    X(LOAD_CALL)     /* dst = obj(a) */                                                                               \
    X(IS_TYPE)       /* type(a) is the object at address */                                                           \
    X(IS)            /* a is the object at address */                                                                 \
    X(IS_NOT)        /* a is not the object at address */                                                             \
    X(IS_CONSTANT)   /* same_constant(a, obj) */                                                                      \
    X(HAS_LENGTH)    /* len(a) == n */                                                                                \
    X(HAS_KEYS)      /* same_keys(a, obj) */                                                                          \
    X(HAS_KEY)       /* obj in a */                                                                                   \
    X(HAS_NO_KEY)    /* obj not in a */                                                                               \
    X(HAS_LAYOUT)    /* obj(a), unless the class a is in the state in which that was true */                          \
    X(NOT_SUBCLASS)  /* obj(a), unless that was true of the class a as it is and none was registered since */            \
    X(HAS_ATTR)      /* hasattr(a, obj) */                                                                            \
    X(HAS_NO_ATTR)   /* not hasattr(a, obj) */                                                                        \
    X(HAS_CODE)      /* a.__code__ is the object at address */                                                        \
    X(IS_TENSOR)     /* a matches tensor spec n */                                                                    \
    X(IS_PLAIN_LEAF) /* a, checked by a spec, is a leaf without hooks whose gradients have the dtype obj, number n */ \
    X(IS_SAME)       /* a is b */                                                                                     \
    X(ARE_DISTINCT)  /* the registers in `operands` hold n distinct objects */                                        \
    X(SHARE_STORAGE) /* a and b, both checked by specs, are views of one storage */                                   \
    X(ARE_DISJOINT)  /* the first of `operands`, all checked by specs, shares no bytes with the others */             \
    X(ARE_ALL_DISJOINT) /* no two of `operands`, all checked by specs, share bytes */                                 \
    X(HAS_SHAPE)     /* shape condition n holds */                                                                    \
    X(CALL_CHECK)    /* obj(register..., ) over `operands` is true */                                                 \
    X(RUN_BLOCK)     /* all of block n, or the proof that nothing in it changed */

typedef enum {
#define X(name) OP_##name,
    FOR_EACH_OPCODE(X)
#undef X
        OP_COUNT,
    OP_FIRST_CHECK = OP_IS_TYPE
} Opcode;

typedef struct {
    Opcode op;
    int dst, a, b;
    Py_ssize_t n;
    uintptr_t address;   /* identity checks compare addresses; the program is killed before one can be reused */
    PyObject *obj;       /* owned: a constant, a name or a callable; never a user object */
    int *operands;       /* n registers, for checks over several values */
    uint64_t *version;   /* when obj(a) was last true, 0 at first. HAS_LAYOUT: the version of class a; NOT_SUBCLASS: the
                            count of registrations, and the version of class a */
} Instruction;

#endif
