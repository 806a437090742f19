/* The native guard program: loads values along source paths into registers, checks them, collects inputs.
 *
 * Contract: agrees with the Python text of the same guards on every input; holds no user object alive; torch is
 * reached at run time only (tensors.c), never through its headers.
 */
#ifndef FRAMESMITH_GUARDS_PROGRAM_H
#define FRAMESMITH_GUARDS_PROGRAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* ---- instructions; the numbers are shared with lowering.py through the module's OPCODES dict ---- */

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
    X(IS_TENSOR)     /* a matches tensor leaf n */                                                                    \
    X(IS_SAME)       /* a is b */                                                                                     \
    X(ARE_DISTINCT)  /* the registers in `operands` hold n distinct objects */                                        \
    X(SHARE_STORAGE) /* a and b, both checked by leaves, are views of one storage */                                  \
    X(ARE_DISJOINT)  /* the first of `operands`, all checked by leaves, shares no bytes with the others */            \
    X(ARE_ALL_DISJOINT) /* no two of `operands`, all checked by leaves, share bytes */                                \
    X(HAS_SHAPE)     /* shape condition n holds */                                                                    \
    X(CALL_CHECK)    /* obj(register..., ) over `operands` is true */                                                 \
    X(RUN_BLOCK)     /* all of block n, or the proof that nothing in it changed */

typedef enum {
#define X(name) OP_##name,
    FOR_EACH_OPCODE(X)
#undef X
        OP_COUNT
} Opcode;

typedef struct {
    Opcode op;
    int dst, a, b;
    Py_ssize_t n;
    uintptr_t address;   /* identity checks compare addresses; the program is killed before one can be reused */
    PyObject *obj;       /* owned: a constant, a name or a callable; never a user object */
    int *operands;       /* n registers, for checks over several values */
    uint64_t *version;   /* of HAS_LAYOUT, NOT_SUBCLASS: the number of the state last compared, 0 at first; of whose */
} Instruction;

/* ---- tensors ---- */

#define ANY_SIZE INT64_MIN

typedef struct {
    PyTypeObject *type; /* borrowed, compared only */
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    int requires_grad;
    int64_t dim;
    int64_t *sizes; /* dim sizes, then dim strides; ANY_SIZE where open */
} TensorLeaf;

int tensors_ready(void);
PyObject *tensors_setup(PyObject *module, PyObject *probes);
PyObject *tensors_probe(PyObject *module, PyObject *tensor);
PyObject *tensors_device_type(PyObject *module, PyObject *name);
PyObject *tensors_watch_keys(PyObject *module, PyObject *args);
PyObject *tensors_key_included(PyObject *module, PyObject *unused);
int tensor_matches(const TensorLeaf *leaf, PyObject *tensor);
int tensors_share_storage(PyObject *a, PyObject *b);
int tensors_are_disjoint(const int *operands, Py_ssize_t count, PyObject **registers);
int tensors_are_all_disjoint(const int *operands, Py_ssize_t count, PyObject **registers);
int tensor_touched_by(const Instruction *i, PyObject **registers);
int tensor_number(PyObject *tensor, int property, Py_ssize_t dim, int64_t *out);
size_t tensor_image_size(void);
void tensor_image(PyObject *tensor, char *out);
int tensor_unchanged(const TensorLeaf *leaf, PyObject *tensor, const char *image);

/* ---- shape conditions ---- */

typedef struct {
    int op;
    int reg;      /* of a leaf */
    int property; /* of a leaf: 0 size, 1 stride, 2 offset, 3 the register's own int */
    int64_t value;
} ShapeStep;

typedef struct {
    Py_ssize_t count;
    ShapeStep *steps;
    PyObject *slow; /* owned: callable over the leaves' values, for what int64 cannot hold */
} ShapeProgram;

int shape_assemble(ShapeProgram *out, PyObject *description);
int shape_holds(const ShapeProgram *shape, PyObject **registers);
PyObject *shape_operators(void);

/* ---- classes and dictionaries that have not changed ---- */

uint64_t class_version(PyTypeObject *type);
int class_unchanged(PyTypeObject *type, uint64_t version);
int class_holds(const Instruction *i, PyObject *value);
int registrations_hold(const Instruction *i, PyObject *value);

typedef struct WatchedDict WatchedDict;
typedef union {
    uint64_t version;     /* CPython 3.11 */
    WatchedDict *watched; /* from 3.12 on */
} DictTag;
int dict_tag(PyObject *dict, DictTag *tag);
int dict_unchanged(DictTag tag, PyObject *dict);
void dict_tag_release(DictTag tag);
int dict_tags_setup(void);

typedef struct InlineImage InlineImage;
int has_inline_values(PyObject *owner);
InlineImage *inline_image(PyObject *owner);
int inline_unchanged(const InlineImage *image, PyObject *owner);
void inline_release(InlineImage *image);

/* ---- blocks: paths through dictionaries below one root, proved unchanged by tags ---- */

typedef struct Proof Proof;

typedef struct {
    int root;
    Py_ssize_t count;
    Instruction *instructions;
    Py_ssize_t output_count;
    int *outputs; /* registers used outside the block */
    Proof *proof; /* NULL until recorded */
    uint64_t hits, records;
} Block;

/* ---- the program ---- */

typedef struct {
    PyObject *snapshot; /* owned: callable, True while the torch state is the one last compared; NULL at first */
    PyObject *renew;    /* owned: callable giving a snapshot; NULL if this torch has none */
    PyObject *rows;     /* owned: tuple of (callable, expected) not covered by the snapshot */
    PyObject *compare;  /* owned: callable comparing everything */
} StateCheck;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    int dead;
    int has_state;
    StateCheck state;
    int registers;
    Py_ssize_t count;
    Instruction *instructions;
    Py_ssize_t leaf_count;
    TensorLeaf *leaves;
    Py_ssize_t shape_count;
    ShapeProgram *shapes;
    Py_ssize_t block_count;
    Block *blocks;
    Py_ssize_t input_count;
    int *inputs;
    PyObject *same_constant, *same_keys; /* owned: the reference predicates, for what is not done here */
    PyObject *shield; /* owned: a context manager's class, for what might run torch-function code; NULL if nothing can */
} Program;

int program_assemble(Program *program, PyObject *description);
void program_clear(Program *program);
int program_traverse(Program *program, visitproc visit, void *arg);

/* 1 holds, 0 misses, -1 an exception is set (any; the caller decides what is a miss) */
int program_run(Program *program, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **registers);
int run_instruction(Program *program, const Instruction *i, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *function, PyObject **registers);
int state_holds(StateCheck *state);

int block_holds(Program *program, Block *block, PyObject **registers);
void block_forget(Block *block);

#endif
