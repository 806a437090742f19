/* Shape conditions: a stack program on int64; what overflows or is not an int goes to its Python text. */

#include "tensors/shapes.h"

#include "tensors/tensors.h"

#define FOR_EACH_OPERATOR(X)                                                                                          \
    X(CONSTANT, 0)                                                                                                    \
    X(OPERAND, 0)                                                                                                     \
    X(Add, 2)                                                                                                         \
    X(Mul, 2)                                                                                                         \
    X(FloorDiv, 2)                                                                                                    \
    X(Mod, 2)                                                                                                         \
    X(Max, 2)                                                                                                         \
    X(Min, 2)                                                                                                         \
    X(Abs, 1)                                                                                                         \
    X(Equality, 2)                                                                                                    \
    X(Unequality, 2)                                                                                                  \
    X(StrictLessThan, 2)                                                                                              \
    X(LessThan, 2)                                                                                                    \
    X(StrictGreaterThan, 2)                                                                                           \
    X(GreaterThan, 2)                                                                                                 \
    X(And, 2)                                                                                                         \
    X(Or, 2)                                                                                                          \
    X(Not, 1)

enum {
#define X(name, arity) SHAPE_##name,
    FOR_EACH_OPERATOR(X)
#undef X
        SHAPE_COUNT
};

static const int ARITY[] = {
#define X(name, arity) arity,
    FOR_EACH_OPERATOR(X)
#undef X
};

#define STACK_DEPTH 64

PyObject *numbers_by_name(const char *const *names, int count)
{
    PyObject *numbers = PyDict_New();
    for (int k = 0; numbers != NULL && k < count; k++) {
        PyObject *number = PyLong_FromLong(k);
        if (number == NULL || PyDict_SetItemString(numbers, names[k], number) < 0) {
            Py_CLEAR(numbers);
        }
        Py_XDECREF(number);
    }
    return numbers;
}

PyObject *shape_operators(void)
{
    static const char *const names[] = {
#define X(name, arity) #name,
        FOR_EACH_OPERATOR(X)
#undef X
    };
    return numbers_by_name(names, SHAPE_COUNT);
}

PyObject *tensor_properties(void)
{
    static const char *const names[] = {
#define X(name) #name,
        FOR_EACH_PROPERTY(X)
#undef X
    };
    return numbers_by_name(names, PROPERTY_COUNT);
}

static int depth_of(const ShapeProgram *shape)
{
    int depth = 0;
    for (Py_ssize_t k = 0; k < shape->count; k++) {
        int arity = ARITY[shape->steps[k].op];
        if (depth < arity || depth - arity + 1 > STACK_DEPTH) {
            return -1;
        }
        depth += 1 - arity;
    }
    return depth;
}

/* A description is (((operator, register, property, value), ...), slow). */
int shape_assemble(ShapeProgram *out, PyObject *description)
{
    PyObject *steps, *slow;
    if (!PyArg_ParseTuple(description, "O!O", &PyTuple_Type, &steps, &slow)) {
        return -1;
    }
    out->count = PyTuple_GET_SIZE(steps);
    out->steps = PyMem_Calloc((size_t)out->count + 1, sizeof *out->steps);
    if (out->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->slow = Py_NewRef(slow);
    for (Py_ssize_t k = 0; k < out->count; k++) {
        long long value;
        ShapeStep *step = out->steps + k;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(steps, k), "iiiL", &step->op, &step->reg, &step->property, &value)) {
            return -1;
        }
        step->value = value;
        if (step->op < 0 || step->op >= SHAPE_COUNT || step->property < 0 || step->property >= PROPERTY_COUNT) {
            PyErr_Format(PyExc_ValueError, "no shape operator %d of property %d", step->op, step->property);
            return -1;
        }
    }
    if (depth_of(out) != 1) {
        PyErr_SetString(PyExc_ValueError, "a shape condition must leave one value, and be at most 64 deep");
        return -1;
    }
    return 0;
}

static int operand_value(const ShapeStep *step, PyObject **registers, int64_t *out)
{
    PyObject *value = registers[step->reg];
    if (step->property != PROPERTY_OWN_INT) {
        return tensor_number(value, (TensorProperty)step->property, (Py_ssize_t)step->value, out);
    }
    int overflow = 0;
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    *out = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

static int floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return 0;
    }
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        q -= 1;
        r += b;
    }
    *quotient = q;
    *rest = r;
    return 1;
}

/* The value of one operator; 0 if int64 cannot hold it or Python would raise. */
static int apply(int op, int64_t a, int64_t b, int64_t *out)
{
    int64_t other;
    switch (op) {
    case SHAPE_Add:
        return !__builtin_add_overflow(a, b, out);
    case SHAPE_Mul:
        return !__builtin_mul_overflow(a, b, out);
    case SHAPE_FloorDiv:
        return floor_divide(a, b, out, &other);
    case SHAPE_Mod:
        return floor_divide(a, b, &other, out);
    case SHAPE_Max:
        *out = a > b ? a : b;
        return 1;
    case SHAPE_Min:
        *out = a < b ? a : b;
        return 1;
    case SHAPE_Abs:
        *out = a < 0 ? -a : a;
        return a != INT64_MIN;
    case SHAPE_Equality:
        *out = a == b;
        return 1;
    case SHAPE_Unequality:
        *out = a != b;
        return 1;
    case SHAPE_StrictLessThan:
        *out = a < b;
        return 1;
    case SHAPE_LessThan:
        *out = a <= b;
        return 1;
    case SHAPE_StrictGreaterThan:
        *out = a > b;
        return 1;
    case SHAPE_GreaterThan:
        *out = a >= b;
        return 1;
    case SHAPE_And:
        *out = a && b;
        return 1;
    case SHAPE_Or:
        *out = a || b;
        return 1;
    case SHAPE_Not:
        *out = !a;
        return 1;
    default:
        return 0;
    }
}

static int evaluate(const ShapeProgram *shape, PyObject **registers, int64_t *result)
{
    int64_t stack[STACK_DEPTH + 1];
    int top = 0;
    for (Py_ssize_t k = 0; k < shape->count; k++) {
        const ShapeStep *step = shape->steps + k;
        int64_t value;
        if (step->op == SHAPE_CONSTANT) {
            value = step->value;
        } else if (step->op == SHAPE_OPERAND) {
            if (!operand_value(step, registers, &value)) {
                return 0;
            }
        } else {
            int64_t b = ARITY[step->op] == 2 ? stack[--top] : 0;
            int64_t a = stack[--top];
            if (!apply(step->op, a, b, &value)) {
                return 0;
            }
        }
        stack[top++] = value;
    }
    *result = stack[0];
    return 1;
}

/* `slow` gets, for every operand in order, its register's value. */
static int evaluate_slowly(const ShapeProgram *shape, PyObject **registers)
{
    PyObject *values = PyList_New(0);
    for (Py_ssize_t k = 0; values != NULL && k < shape->count; k++) {
        if (shape->steps[k].op == SHAPE_OPERAND && PyList_Append(values, registers[shape->steps[k].reg]) < 0) {
            Py_CLEAR(values);
        }
    }
    PyObject *answer = values == NULL ? NULL : PyObject_CallOneArg(shape->slow, values);
    Py_XDECREF(values);
    int status = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return status;
}

int shape_holds(const ShapeProgram *shape, PyObject **registers)
{
    int64_t result;
    return evaluate(shape, registers, &result) ? result != 0 : evaluate_slowly(shape, registers);
}
