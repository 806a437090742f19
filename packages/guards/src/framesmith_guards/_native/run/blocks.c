/* Blocks: what is reached from one root through dictionaries alone, skipped while a proof says nothing changed.
 *
 * Note [Proofs]: after all of a block held, its proof is recorded: a list of facts, each of which only reads what the
 * facts before it prove to be alive and the same. The root is the recorded object or an object at its address; its
 * instance dict is the recorded one (the slot holds it) and unchanged (its tag), so everything in that dict is the
 * recorded object and alive, and so on down. Types of instances can be reassigned and tensors changed in place without
 * any dict changing, so those are facts of their own. A class's dict is known by the class's version; the proxy through
 * which it is read is made afresh each time, and is none of the values. A proof owns no object: it compares addresses.
 */

#include "run/blocks.h"

#include "facts/classes.h"
#include "facts/dict_tags.h"
#include "facts/inline_values.h"
#include "run/instructions.h"
#include "tensors/tensors.h"
#include <string.h>

typedef enum { FACT_TYPE, FACT_SLOT, FACT_INLINE, FACT_DICT, FACT_TENSOR, FACT_CLASS, FACT_RERUN } FactKind;

typedef struct {
    FactKind kind;
    PyObject *object; /* FACT_SLOT, FACT_DICT: the dict; FACT_INLINE: its owner; else the value */
    union {
        PyTypeObject *type;
        PyObject **slot;
        const TensorSpec *spec;
        const Instruction *instruction;
        InlineImage *values;
    } is;
    union {
        DictTag tag;    /* FACT_SLOT, FACT_DICT */
        char *metadata; /* FACT_TENSOR */
        PyObject *dict; /* FACT_INLINE: over the inline values */
        uint64_t version; /* FACT_CLASS */
    } as;
} Fact;

struct Proof {
    PyObject *root;
    Py_ssize_t count, capacity;
    Fact *facts;
    PyObject *kept;    /* owned: a list of constants whose identity is a fact */
    PyObject **values; /* of the block's outputs, in their order */
    char *metadata, *next_metadata; /* one after the other, as they are compared */
};

static void proof_free(Proof *proof)
{
    if (proof == NULL) {
        return;
    }
    for (Py_ssize_t k = 0; k < proof->count; k++) {
        Fact *fact = proof->facts + k;
        if (fact->kind == FACT_DICT || fact->kind == FACT_SLOT) {
            dict_tag_release(fact->as.tag);
        } else if (fact->kind == FACT_INLINE) {
            inline_release(fact->is.values);
        }
    }
    Py_XDECREF(proof->kept);
    PyMem_Free(proof->facts);
    PyMem_Free(proof->values);
    PyMem_Free(proof->metadata);
    PyMem_Free(proof);
}

void block_forget(Block *block)
{
    Proof *proof = block->proof;
    block->proof = NULL;
    proof_free(proof);
}

/* ---- recording ---- */

static Fact *new_fact(Proof *proof, FactKind kind, PyObject *object)
{
    if (proof->count == proof->capacity) {
        Py_ssize_t capacity = proof->capacity * 2 + 8;
        Fact *facts = PyMem_Realloc(proof->facts, (size_t)capacity * sizeof *facts);
        if (facts == NULL) {
            return NULL;
        }
        proof->facts = facts;
        proof->capacity = capacity;
    }
    Fact *fact = proof->facts + proof->count++;
    memset(fact, 0, sizeof *fact);
    fact->kind = kind;
    fact->object = object;
    return fact;
}

static int knows_dict(const Proof *proof, PyObject *dict)
{
    for (Py_ssize_t k = 0; k < proof->count; k++) {
        const Fact *fact = proof->facts + k;
        if ((fact->kind == FACT_DICT || fact->kind == FACT_SLOT) && fact->object == dict) {
            return 1;
        }
    }
    return 0;
}

static int prove_dict(Proof *proof, FactKind kind, PyObject *dict, PyObject **slot)
{
    if (kind == FACT_DICT && knows_dict(proof, dict)) {
        return 1;
    }
    DictTag tag;
    if (!dict_tag(dict, &tag)) {
        return 0;
    }
    Fact *fact = new_fact(proof, kind, dict);
    if (fact == NULL) {
        dict_tag_release(tag);
        return 0;
    }
    fact->as.tag = tag;
    fact->is.slot = slot;
    return 1;
}

static int prove_type(Proof *proof, PyObject *value)
{
    Fact *fact = new_fact(proof, FACT_TYPE, value);
    if (fact != NULL) {
        fact->is.type = Py_TYPE(value);
    }
    return fact != NULL;
}

static int prove_inline_values(Proof *proof, PyObject *owner, PyObject *dict)
{
    InlineImage *values = inline_image(owner);
    Fact *fact = values == NULL ? NULL : new_fact(proof, FACT_INLINE, owner);
    if (fact == NULL) {
        inline_release(values);
        return 0;
    }
    fact->is.values = values;
    fact->as.dict = dict;
    return 1;
}

static int is_over_inline_values(const Proof *proof, PyObject *dict)
{
    for (Py_ssize_t k = 0; k < proof->count; k++) {
        if (proof->facts[k].kind == FACT_INLINE && proof->facts[k].as.dict == dict) {
            return 1;
        }
    }
    return 0;
}

static int prove_instance_dict(Proof *proof, PyObject *owner, PyObject *dict)
{
    if (!PyDict_CheckExact(dict) || !prove_type(proof, owner)) {
        return 0;
    }
    PyObject **slot = _PyObject_GetDictPtr(owner);
    return slot != NULL && *slot == dict && prove_dict(proof, FACT_SLOT, dict, slot) &&
           (!has_inline_values(owner) || prove_inline_values(proof, owner, dict));
}

static int prove_version(Proof *proof, PyTypeObject *type)
{
    uint64_t version = class_version(type);
    Fact *fact = version == 0 ? NULL : new_fact(proof, FACT_CLASS, (PyObject *)type);
    if (fact != NULL) {
        fact->as.version = version;
    }
    return fact != NULL;
}

/* A class whose `__dict__` is the real one: no metaclass has its own, or gets one. */
static int prove_class(Proof *proof, PyObject *class)
{
    PyTypeObject *meta = Py_TYPE(class);
    if (meta != &PyType_Type) {
        PyObject *name = PyUnicode_InternFromString("__dict__");
        int plain = name != NULL && meta->tp_getattro == PyType_Type.tp_getattro &&
                    _PyType_Lookup(meta, name) == _PyType_Lookup(&PyType_Type, name);
        Py_XDECREF(name);
        if (!plain || !prove_type(proof, class) || !prove_version(proof, meta)) {
            return 0;
        }
    }
    return prove_version(proof, (PyTypeObject *)class);
}

/* Whether a register holds a proxy of the dict of a class that is proved the same. */
static int is_of_class(const Block *block, int reg, PyObject **registers)
{
    if (Py_TYPE(registers[reg]) != &PyDictProxy_Type) {
        return 0;
    }
    for (Py_ssize_t k = 0; k < block->count; k++) {
        const Instruction *i = block->instructions + k;
        if (i->op == OP_LOAD_DICT && i->dst == reg) {
            return PyType_Check(registers[i->a]);
        }
    }
    return 0;
}

static int prove_tensor(Proof *proof, const TensorSpec *spec, PyObject *tensor)
{
    Fact *fact = new_fact(proof, FACT_TENSOR, tensor);
    if (fact == NULL) {
        return 0;
    }
    fact->is.spec = spec;
    fact->as.metadata = proof->next_metadata;
    proof->next_metadata += tensor_metadata_size();
    copy_tensor_metadata(tensor, fact->as.metadata);
    return 1;
}

/* As `_is_atomic` of rows.py, whose BLOCK_KINDS says which guards are put into blocks. */
static int is_atomic(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    int all = type == &PyTuple_Type;
    for (Py_ssize_t k = 0; all && k < PyTuple_GET_SIZE(value); k++) {
        all = is_atomic(PyTuple_GET_ITEM(value, k));
    }
    return all || value == Py_None || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyUnicode_Type || type == &PyBytes_Type || type == &PyComplex_Type;
}

static int keep(Proof *proof, PyObject *value)
{
    if (proof->kept == NULL) {
        proof->kept = PyList_New(0);
    }
    int status = proof->kept == NULL ? -1 : PyList_Append(proof->kept, value);
    if (status < 0) {
        PyErr_Clear();
    }
    return status == 0;
}

static int is_tracked_dict(PyObject *value)
{
    return PyDict_CheckExact(value) || PyODict_CheckExact(value);
}

static int prove_contents(Proof *proof, PyObject *dict, int is_root)
{
    return is_tracked_dict(dict) && (!is_of_inline_values(dict) || is_over_inline_values(proof, dict)) &&
           (!is_root || knows_dict(proof, dict) || prove_type(proof, dict)) &&
           prove_dict(proof, FACT_DICT, dict, NULL);
}

/* An item whose address is known to be the same: is it the same object? Not so in dicts over inline values. */
static int prove_item(Proof *proof, PyObject *container, PyObject *item)
{
    if (!is_over_inline_values(proof, container)) {
        return 1;
    }
    return is_tracked_dict(item) ? prove_dict(proof, FACT_DICT, item, NULL) : is_atomic(item) && keep(proof, item);
}

static int prove_again(Proof *proof, const Instruction *i, PyObject *value)
{
    Fact *fact = new_fact(proof, FACT_RERUN, value);
    if (fact != NULL) {
        fact->is.instruction = i;
    }
    return fact != NULL;
}

/* Whether the length and the elements of a value can be looked at without running Python code. */
static int is_plain_sequence(PyObject *value)
{
    return PyTuple_CheckExact(value) || PyList_CheckExact(value) || PyUnicode_CheckExact(value);
}

/* Covers what lowering puts into blocks: checks by BLOCK_KINDS of rows.py, loads by `Lowering.block_root`. */
static int prove(Program *program, Proof *proof, const Instruction *i, PyObject **registers, const Block *block)
{
    PyObject *a = registers[i->a];
    int is_root = i->a == block->root;
    if (is_of_class(block, i->a, registers)) {
        return i->op == OP_LOAD_ITEM || i->op == OP_HAS_LENGTH || i->op == OP_HAS_KEYS || i->op == OP_HAS_KEY ||
               i->op == OP_HAS_NO_KEY;
    }
    switch (i->op) {
    case OP_LOAD_DICT:
        return PyType_Check(a) ? prove_class(proof, a) : prove_instance_dict(proof, a, registers[i->dst]);
    case OP_LOAD_ITEM:
    case OP_LOAD_KEY:
    case OP_LOAD_VALUE:
        return (!is_root && PyTuple_CheckExact(a)) ||
               (prove_contents(proof, a, is_root) && prove_item(proof, a, registers[i->dst]));
    case OP_HAS_LENGTH:
        return is_plain_sequence(a) ? prove_again(proof, i, a) : prove_contents(proof, a, is_root);
    case OP_HAS_KEYS: /* move_to_end of an OrderedDict leaves its version as it was */
        return prove_contents(proof, a, is_root) &&
               (!PyODict_CheckExact(a) || PyODict_SIZE(a) < 2 || prove_again(proof, i, a));
    case OP_HAS_KEY:
    case OP_HAS_NO_KEY:
        return prove_contents(proof, a, is_root);
    case OP_IS_TYPE:
        return (!is_root && is_atomic(a)) || prove_type(proof, a);
    case OP_IS:
    case OP_IS_NOT:
        return !is_root;
    case OP_IS_CONSTANT:
        return !is_root && is_atomic(a);
    case OP_IS_PLAIN_LEAF: /* after the fact that this is a tensor of that type */
        return prove_again(proof, i, a);
    case OP_IS_TENSOR:
        return prove_tensor(proof, program->specs + i->n, a);
    case OP_HAS_CODE:
        return PyFunction_Check(a) && prove_again(proof, i, a);
    default:
        return 0;
    }
}

static size_t tensor_count(const Block *block)
{
    size_t count = 0;
    for (Py_ssize_t k = 0; k < block->count; k++) {
        count += block->instructions[k].op == OP_IS_TENSOR;
    }
    return count;
}

static void record(Program *program, Block *block, PyObject **registers)
{
    Proof *proof = PyMem_Calloc(1, sizeof *proof);
    if (proof == NULL) {
        return;
    }
    proof->root = registers[block->root];
    proof->values = PyMem_Calloc((size_t)block->output_count + 1, sizeof *proof->values);
    proof->metadata = proof->next_metadata = PyMem_Malloc(tensor_count(block) * tensor_metadata_size() + 1);
    int proved = proof->values != NULL && proof->metadata != NULL;
    for (Py_ssize_t k = 0; proved && k < block->count; k++) {
        proved = prove(program, proof, block->instructions + k, registers, block);
    }
    for (Py_ssize_t k = 0; proved && k < block->output_count; k++) {
        proof->values[k] = registers[block->outputs[k]];
        proved = Py_TYPE(proof->values[k]) != &PyDictProxy_Type; /* nobody else keeps a class's alive */
    }
    block->records++;
    block_forget(block); /* another thread may have recorded one while Python code ran here */
    if (proved) {
        block->proof = proof;
    } else {
        proof_free(proof);
    }
}

/* ---- using ---- */

static int can_run_again(const Instruction *i, PyObject *value)
{
    switch (i->op) {
    case OP_IS_PLAIN_LEAF:
        return 1;
    case OP_HAS_CODE:
        return PyFunction_Check(value);
    default:
        return is_plain_sequence(value);
    }
}

static int run_again(Program *program, const Fact *fact, PyObject **registers)
{
    const Instruction *i = fact->is.instruction;
    if (!can_run_again(i, fact->object)) {
        return 0;
    }
    Py_XSETREF(registers[i->a], Py_NewRef(fact->object));
    return run_instruction(program, i, NULL, 0, NULL, registers);
}

static int fact_holds(Program *program, const Fact *fact, PyObject **registers)
{
    switch (fact->kind) {
    case FACT_TYPE:
        return Py_TYPE(fact->object) == fact->is.type;
    case FACT_SLOT:
        return *fact->is.slot == fact->object && dict_unchanged(fact->as.tag, fact->object);
    case FACT_INLINE:
        return inline_unchanged(fact->is.values, fact->object);
    case FACT_DICT:
        return dict_unchanged(fact->as.tag, fact->object);
    case FACT_TENSOR:
        return tensor_unchanged(fact->is.spec, fact->object, fact->as.metadata);
    case FACT_CLASS:
        return class_unchanged((PyTypeObject *)fact->object, fact->as.version);
    case FACT_RERUN:
        return run_again(program, fact, registers);
    }
    Py_UNREACHABLE();
}

static int proof_holds(Program *program, const Block *block, PyObject **registers)
{
    const Proof *proof = block->proof;
    int holds = proof->root == registers[block->root];
    for (Py_ssize_t k = 0; holds == 1 && k < proof->count; k++) {
        holds = fact_holds(program, proof->facts + k, registers);
    }
    return holds;
}

/* Note [Confirming proofs]: the values were loaded before the tags were taken, and Python code (a finalizer, another
 * thread) may have run in between. So all is loaded and checked once more, and the proof must hold after that.
 */
static int confirmed(Program *program, const Block *block, PyObject **registers)
{
    PyObject **scratch = PyMem_Calloc((size_t)program->registers, sizeof *scratch);
    if (scratch == NULL) {
        return 0;
    }
    scratch[block->root] = Py_NewRef(registers[block->root]);
    int same = 1;
    for (Py_ssize_t k = 0; same == 1 && k < block->count; k++) {
        same = run_instruction(program, block->instructions + k, NULL, 0, NULL, scratch);
    }
    for (int k = 0; k < program->registers; k++) {
        same = same == 1 && (scratch[k] == NULL || scratch[k] == registers[k] ||
                             (Py_TYPE(scratch[k]) == &PyDictProxy_Type && is_of_class(block, k, registers)));
        Py_XDECREF(scratch[k]);
    }
    PyMem_Free(scratch);
    return same && block->proof != NULL && proof_holds(program, block, registers) == 1;
}

static int worth_recording(const Block *block)
{
    return block->records < 16 + block->hits / 4;
}

int block_holds(Program *program, Block *block, PyObject **registers)
{
    if (block->proof != NULL) {
        int holds = proof_holds(program, block, registers);
        if (holds < 0) {
            return -1;
        }
        if (holds) {
            for (Py_ssize_t k = 0; k < block->output_count; k++) {
                Py_XSETREF(registers[block->outputs[k]], Py_NewRef(block->proof->values[k]));
            }
            block->hits++;
            return 1;
        }
        block_forget(block);
    }
    int status = 1;
    for (Py_ssize_t k = 0; status == 1 && k < block->count; k++) {
        status = run_instruction(program, block->instructions + k, NULL, 0, NULL, registers);
    }
    if (status == 1 && worth_recording(block)) {
        record(program, block, registers);
        if (block->proof != NULL && !confirmed(program, block, registers)) {
            block_forget(block);
        }
        PyErr_Clear();
    }
    return status;
}
