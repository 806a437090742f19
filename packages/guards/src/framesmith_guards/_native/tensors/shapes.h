/* Conditions over sizes, strides, offsets and integers, in int64 arithmetic. */
#ifndef FRAMESMITH_GUARDS_SHAPES_H
#define FRAMESMITH_GUARDS_SHAPES_H

#include "instruction.h"

typedef struct {
    int op;
    int reg;      /* of an operand */
    int property; /* of an operand: a TensorProperty */
    int64_t value;
} ShapeStep;

typedef struct {
    Py_ssize_t count;
    ShapeStep *steps;
    PyObject *slow; /* owned: callable over the operands' values, for what int64 cannot hold */
} ShapeProgram;

int shape_assemble(ShapeProgram *out, PyObject *description);
int shape_holds(const ShapeProgram *shape, PyObject **registers);
PyObject *numbers_by_name(const char *const *names, int count); /* {name: its index} */
PyObject *shape_operators(void);
PyObject *tensor_properties(void);

#endif
