/* Conditions over sizes, strides, offsets and integers, in int64 arithmetic. */
#ifndef FRAMESMITH_GUARDS_SHAPES_H
#define FRAMESMITH_GUARDS_SHAPES_H

#include "instruction.h"

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

#endif
