/* A program from its description (made by lowering.py): tuples of numbers, names, constants and callables. */

#include "api/assemble.h"

#include "run/blocks.h"
#include "tensors/shapes.h"
#include "tensors/tensors.h"
#include "tensors/torch_layout.h"

static int *numbers_of(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int *numbers = PyMem_Calloc((size_t)count + 1, sizeof *numbers);
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        numbers[k] = (int)PyLong_AsLong(PyTuple_GET_ITEM(tuple, k));
    }
    if (PyErr_Occurred()) {
        PyMem_Free(numbers);
        return NULL;
    }
    return numbers;
}

static int valid_register(const Program *program, int number)
{
    return number >= -1 && number < program->registers;
}

static int check_instruction(const Program *program, const Instruction *i)
{
    int valid = i->op >= 0 && i->op < OP_COUNT && valid_register(program, i->dst) && valid_register(program, i->a) &&
                valid_register(program, i->b);
    for (Py_ssize_t k = 0; valid && i->operands != NULL && k < i->n; k++) {
        valid = valid_register(program, i->operands[k]);
    }
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "an instruction's operator or registers are out of range");
    }
    return valid ? 0 : -1;
}

/* (operator, dst, a, b, n, address, obj, operands) */
static int assemble_instruction(const Program *program, Instruction *out, PyObject *description)
{
    int op;
    unsigned long long address;
    PyObject *obj, *operands;
    if (!PyArg_ParseTuple(description, "iiiinKOO!", &op, &out->dst, &out->a, &out->b, &out->n, &address, &obj,
                          &PyTuple_Type, &operands)) {
        return -1;
    }
    out->op = (Opcode)op;
    out->address = (uintptr_t)address;
    out->obj = Py_NewRef(obj);
    if (PyTuple_GET_SIZE(operands) > 0) {
        out->n = PyTuple_GET_SIZE(operands);
        out->operands = numbers_of(operands);
        if (out->operands == NULL) {
            return -1;
        }
    }
    if (out->dst < 0) {
        out->dst = 0; /* a check stores nothing */
    }
    if (out->op == OP_HAS_LAYOUT || out->op == OP_NOT_SUBCLASS) {
        out->version = PyMem_Calloc(2, sizeof *out->version);
        if (out->version == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return check_instruction(program, out);
}

static Instruction *assemble_instructions(const Program *program, PyObject *tuple, Py_ssize_t *count)
{
    Instruction *instructions = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *instructions);
    if (instructions == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
        *count = k + 1;
        if (assemble_instruction(program, instructions + k, PyTuple_GET_ITEM(tuple, k)) < 0) {
            break; /* what was made so far is freed with the program */
        }
    }
    return instructions;
}

static int64_t size_of(PyObject *value)
{
    return value == Py_None ? ANY_SIZE : PyLong_AsLongLong(value);
}

/* (type, keys, dtype, device type, device index, requires_grad, sizes, strides) */
static int assemble_spec(TensorSpec *out, PyObject *description)
{
    unsigned long long keys;
    PyObject *sizes, *strides;
    if (!PyArg_ParseTuple(description, "O!KiiipO!O!", &PyType_Type, &out->type, &keys, &out->dtype, &out->device_type,
                          &out->device_index, &out->requires_grad, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) {
        return -1;
    }
    out->keys = keys;
    out->dim = PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != out->dim) {
        PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as sizes");
        return -1;
    }
    out->sizes = PyMem_Calloc((size_t)out->dim * 2 + 1, sizeof *out->sizes);
    if (out->sizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t k = 0; k < out->dim; k++) {
        out->sizes[k] = size_of(PyTuple_GET_ITEM(sizes, k));
        out->sizes[out->dim + k] = size_of(PyTuple_GET_ITEM(strides, k));
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int assemble_specs(Program *program, PyObject *tuple)
{
    if (PyTuple_GET_SIZE(tuple) > 0 && !tensors_ready()) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor layout of this torch is not known");
        return -1;
    }
    program->specs = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *program->specs);
    if (program->specs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
        program->spec_count = k + 1;
        if (assemble_spec(program->specs + k, PyTuple_GET_ITEM(tuple, k)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int assemble_shapes(Program *program, PyObject *tuple)
{
    program->shapes = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *program->shapes);
    if (program->shapes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
        program->shape_count = k + 1;
        if (shape_assemble(program->shapes + k, PyTuple_GET_ITEM(tuple, k)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* (root, instructions, outputs) */
static int assemble_block(const Program *program, Block *out, PyObject *description)
{
    PyObject *instructions, *outputs;
    if (!PyArg_ParseTuple(description, "iO!O!", &out->root, &PyTuple_Type, &instructions, &PyTuple_Type, &outputs)) {
        return -1;
    }
    out->instructions = assemble_instructions(program, instructions, &out->count);
    out->output_count = PyTuple_GET_SIZE(outputs);
    out->outputs = numbers_of(outputs);
    for (Py_ssize_t k = 0; out->instructions != NULL && k < out->count; k++) {
        if (out->instructions[k].op == OP_RUN_BLOCK) {
            PyErr_SetString(PyExc_ValueError, "a block runs no other block");
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int assemble_blocks(Program *program, PyObject *tuple)
{
    program->blocks = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *program->blocks);
    if (program->blocks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
        program->block_count = k + 1;
        if (assemble_block(program, program->blocks + k, PyTuple_GET_ITEM(tuple, k)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* None, or (bits of modes, renew or None, rows, compare) */
static int assemble_state(Program *program, PyObject *description)
{
    PyObject *renew, *rows, *compare;
    if (description == Py_None) {
        return 0;
    }
    if (!PyArg_ParseTuple(description, "IOO!O", &program->state.inactive, &renew, &PyTuple_Type, &rows, &compare)) {
        return -1;
    }
    program->state.renew = renew == Py_None ? NULL : Py_NewRef(renew);
    program->state.rows = Py_NewRef(rows);
    program->state.compare = Py_NewRef(compare);
    program->has_state = 1;
    return 0;
}

/* (registers, instructions, specs, shapes, blocks, state, inputs, same_constant, same_keys, no_torch_function or None)
 */
int program_assemble(Program *program, PyObject *description)
{
    PyObject *instructions, *specs, *shapes, *blocks, *state, *inputs, *same_constant, *same_keys, *no_torch_function;
    if (!PyArg_ParseTuple(description, "iO!O!O!O!OO!OOO", &program->registers, &PyTuple_Type, &instructions,
                          &PyTuple_Type, &specs, &PyTuple_Type, &shapes, &PyTuple_Type, &blocks, &state,
                          &PyTuple_Type, &inputs, &same_constant, &same_keys, &no_torch_function)) {
        return -1;
    }
    program->same_constant = Py_NewRef(same_constant);
    program->same_keys = Py_NewRef(same_keys);
    program->no_torch_function = no_torch_function == Py_None ? NULL : Py_NewRef(no_torch_function);
    program->input_count = PyTuple_GET_SIZE(inputs);
    program->inputs = numbers_of(inputs);
    if (program->inputs == NULL) {
        return -1;
    }
    program->instructions = assemble_instructions(program, instructions, &program->count);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (assemble_specs(program, specs) < 0 || assemble_shapes(program, shapes) < 0 ||
        assemble_blocks(program, blocks) < 0) {
        return -1;
    }
    return assemble_state(program, state);
}

/* ---- the end ---- */

static void clear_instructions(Instruction *instructions, Py_ssize_t count)
{
    for (Py_ssize_t k = 0; instructions != NULL && k < count; k++) {
        Py_CLEAR(instructions[k].obj);
        PyMem_Free(instructions[k].operands);
        PyMem_Free(instructions[k].version);
    }
    PyMem_Free(instructions);
}

void program_clear(Program *program)
{
    program->dead = 1; /* first: what is let go of below may run Python code */
    clear_instructions(program->instructions, program->count);
    program->instructions = NULL;
    program->count = 0;
    for (Py_ssize_t k = 0; k < program->spec_count; k++) {
        PyMem_Free(program->specs[k].sizes);
    }
    for (Py_ssize_t k = 0; k < program->shape_count; k++) {
        PyMem_Free(program->shapes[k].steps);
        Py_CLEAR(program->shapes[k].slow);
    }
    for (Py_ssize_t k = 0; k < program->block_count; k++) {
        block_forget(program->blocks + k);
        clear_instructions(program->blocks[k].instructions, program->blocks[k].count);
        PyMem_Free(program->blocks[k].outputs);
    }
    PyMem_Free(program->specs);
    PyMem_Free(program->shapes);
    PyMem_Free(program->blocks);
    PyMem_Free(program->inputs);
    program->specs = NULL;
    program->shapes = NULL;
    program->blocks = NULL;
    program->inputs = NULL;
    program->spec_count = program->shape_count = program->block_count = program->input_count = 0;
    program->has_state = 0;
    Py_CLEAR(program->state.snapshot);
    Py_CLEAR(program->state.renew);
    Py_CLEAR(program->state.rows);
    Py_CLEAR(program->state.compare);
    Py_CLEAR(program->same_constant);
    Py_CLEAR(program->same_keys);
    Py_CLEAR(program->no_torch_function);
}

static int traverse_instructions(const Instruction *instructions, Py_ssize_t count, visitproc visit, void *arg)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        Py_VISIT(instructions[k].obj);
    }
    return 0;
}

int program_traverse(Program *program, visitproc visit, void *arg)
{
    int status = traverse_instructions(program->instructions, program->count, visit, arg);
    for (Py_ssize_t k = 0; status == 0 && k < program->block_count; k++) {
        status = traverse_instructions(program->blocks[k].instructions, program->blocks[k].count, visit, arg);
    }
    if (status != 0) {
        return status;
    }
    for (Py_ssize_t k = 0; k < program->shape_count; k++) {
        Py_VISIT(program->shapes[k].slow);
    }
    Py_VISIT(program->state.snapshot);
    Py_VISIT(program->state.renew);
    Py_VISIT(program->state.rows);
    Py_VISIT(program->state.compare);
    Py_VISIT(program->same_constant);
    Py_VISIT(program->same_keys);
    Py_VISIT(program->no_torch_function);
    return 0;
}
