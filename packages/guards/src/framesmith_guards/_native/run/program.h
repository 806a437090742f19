/* The native guard program: loads values along source paths into registers, checks them, collects inputs.
 *
 * Contract: agrees with the Python text of the same guards on every input; holds no user object alive; torch is
 * reached at run time only (tensors.c), never through its headers.
 */
#ifndef FRAMESMITH_GUARDS_PROGRAM_H
#define FRAMESMITH_GUARDS_PROGRAM_H

#include "facts/state.h"
#include "instruction.h"
#include "tensors/shapes.h"
#include "tensors/tensors.h"

/* A block: paths through dictionaries below one root, proved unchanged by tags. */
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

/* Where the item read last by its number stands in its dict, for the time of one run: the next is read from there. */
typedef struct {
    PyObject *dict; /* borrowed: NULL, or what a register holds */
    Py_ssize_t index, position;
} Cursor;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    int dead;
    Cursor cursor;
    int has_state;
    StateCheck state;
    int registers;
    Py_ssize_t count;
    Instruction *instructions;
    Py_ssize_t spec_count;
    TensorSpec *specs;
    Py_ssize_t shape_count;
    ShapeProgram *shapes;
    Py_ssize_t block_count;
    Block *blocks;
    Py_ssize_t input_count;
    int *inputs;
    PyObject *same_constant, *same_keys; /* owned: the reference predicates, for what is not done here */
    PyObject *no_torch_function; /* owned: a context manager's class; NULL if nothing can run torch-function code */
} Program;

#endif
