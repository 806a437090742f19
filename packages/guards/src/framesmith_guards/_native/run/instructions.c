/* Loads and checks; anything unusual goes to the reference predicates. */

#include "run/instructions.h"

#include "compat.h"
#include "facts/classes.h"
#include "tensors/leaves.h"
#include "tensors/shapes.h"
#include "tensors/tensors.h"

static void store(PyObject **slot, PyObject *value) /* steals value */
{
    PyObject *old = *slot;
    *slot = value;
    Py_XDECREF(old);
}

/* ---- loads: 1, or -1 with an exception ---- */

static int found(PyObject **slot, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    store(slot, value);
    return 1;
}

static int found_borrowed(PyObject **slot, PyObject *value)
{
    if (value == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetNone(PyExc_LookupError);
        }
        return -1;
    }
    store(slot, Py_NewRef(value));
    return 1;
}

static int load_item(PyObject **slot, PyObject *base, PyObject *key)
{
    if (PyDict_CheckExact(base)) {
        return found_borrowed(slot, PyDict_GetItemWithError(base, key));
    }
    if (PyLong_CheckExact(key) && (PyTuple_CheckExact(base) || PyList_CheckExact(base))) {
        Py_ssize_t index = PyLong_AsSsize_t(key);
        index += index < 0 ? PySequence_Fast_GET_SIZE(base) : 0;
        if (index >= 0 && index < PySequence_Fast_GET_SIZE(base)) {
            return found_borrowed(slot, PySequence_Fast_GET_ITEM(base, index));
        }
        PyErr_Clear();
    }
    return found(slot, PyObject_GetItem(base, key));
}

static int load_nth(Cursor *cursor, PyObject **slot, PyObject *base, Py_ssize_t n, int value)
{
    PyObject *key, *item;
    if (!is_dict_or_frozen(base)) {
        PyErr_SetString(PyExc_TypeError, "not a dict");
        return -1;
    }
    if (cursor->dict != base || n < cursor->index) {
        *cursor = (Cursor){base, 0, 0};
    }
    for (Py_ssize_t position = cursor->position; PyDict_Next(base, &position, &key, &item); cursor->index++) {
        if (cursor->index == n) {
            return found_borrowed(slot, value ? item : key);
        }
        cursor->position = position;
    }
    PyErr_SetNone(PyExc_IndexError);
    return -1;
}

static int load_cell(PyObject **slot, PyObject *cell)
{
    if (PyCell_Check(cell)) {
        return found_borrowed(slot, PyCell_GET(cell));
    }
    PyObject *value = PyObject_GetAttrString(cell, "cell_contents");
    return found(slot, value);
}

static int load_closure(PyObject **slot, PyObject *function, Py_ssize_t n)
{
    PyObject *closure = PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : NULL;
    if (closure == NULL || n >= PyTuple_GET_SIZE(closure)) {
        PyErr_SetNone(PyExc_LookupError);
        return -1;
    }
    return load_cell(slot, PyTuple_GET_ITEM(closure, n));
}

static int load_globals(PyObject **slot, PyObject *function)
{
    if (PyFunction_Check(function)) {
        return found_borrowed(slot, PyFunction_GET_GLOBALS(function));
    }
    return found(slot, PyObject_GetAttrString(function, "__globals__"));
}

static int load_builtin(PyObject **slot, PyObject *function, PyObject *name)
{
    PyObject *builtins = PyObject_GetAttrString(function, "__builtins__");
    if (builtins == NULL) {
        return -1;
    }
    int status = load_item(slot, builtins, name);
    Py_DECREF(builtins);
    return status;
}

/* ---- checks: 1, 0, or -1 with an exception ---- */

static int is_nan(PyObject *value)
{
    double number = PyFloat_AS_DOUBLE(value);
    return number != number;
}

static int same_constant(Program *program, PyObject *value, PyObject *expected)
{
    PyTypeObject *type = Py_TYPE(expected);
    if (Py_TYPE(value) != type) {
        return 0;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
        return value == expected ? 1 : PyObject_RichCompareBool(value, expected, Py_EQ);
    }
    if (type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(value), b = PyFloat_AS_DOUBLE(expected);
        return memcmp(&a, &b, sizeof a) == 0 || (is_nan(value) && is_nan(expected));
    }
    if (type == &PyBool_Type || expected == Py_None || expected == Py_Ellipsis) {
        return value == expected;
    }
    if (type == &PyTuple_Type) {
        Py_ssize_t size = PyTuple_GET_SIZE(expected);
        int same = PyTuple_GET_SIZE(value) == size;
        for (Py_ssize_t k = 0; same == 1 && k < size; k++) {
            same = same_constant(program, PyTuple_GET_ITEM(value, k), PyTuple_GET_ITEM(expected, k));
        }
        return same;
    }
    PyObject *answer = PyObject_CallFunctionObjArgs(program->same_constant, value, expected, NULL);
    int status = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return status;
}

/* Whether a key is the expected object, or what the expected weak reference refers to. */
static int is_key(PyObject *key, PyObject *expected)
{
    return key == expected || (PyWeakref_CheckRefExact(expected) && weakref_is_to(expected, key));
}

/* How many keys of an OrderedDict, in its own order, are the expected objects; a class's own __iter__ is not asked. */
static Py_ssize_t equal_ordered(PyObject *value, PyObject *expected, Py_ssize_t size)
{
    PyObject *key, *keys = PyODict_Type.tp_iter(value);
    Py_ssize_t index = 0;
    if (keys == NULL) {
        return -1;
    }
    while (index < size && (key = PyIter_Next(keys)) != NULL) {
        Py_DECREF(key);
        if (!is_key(key, PyTuple_GET_ITEM(expected, index))) {
            break;
        }
        index++;
    }
    Py_DECREF(keys);
    return PyErr_Occurred() ? -1 : index;
}

static int has_keys(Program *program, PyObject *value, PyObject *expected)
{
    PyObject *key;
    Py_ssize_t position = 0, index = 0, size = PyTuple_GET_SIZE(expected);
    int is_dict = is_dict_or_frozen(value);
    if (is_dict ? PyDict_GET_SIZE(value) != size : !Py_IS_TYPE(value, &PyDictProxy_Type)) {
        return 0;
    }
    if (is_dict && PyODict_Check(value)) {
        index = equal_ordered(value, expected, size);
        if (index < 0) {
            return -1;
        }
    }
    else {
        while (is_dict && PyDict_Next(value, &position, &key, NULL)) {
            if (index < size && !is_key(key, PyTuple_GET_ITEM(expected, index))) {
                break;
            }
            index++;
        }
    }
    if (is_dict && index == size) {
        return 1;
    }
    PyObject *answer = PyObject_CallFunctionObjArgs(program->same_keys, value, expected, NULL);
    int status = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return status;
}

static int contains(PyObject *container, PyObject *key)
{
    if (is_dict_or_frozen(container)) { /* past what its class says */
        return PyDict_Contains(container, key);
    }
    PySequenceMethods *methods = Py_TYPE(container)->tp_as_sequence;
    if (methods == NULL || methods->sq_contains == NULL) { /* else it would be iterated, and maybe consumed */
        PyErr_SetString(PyExc_TypeError, "not a container");
        return -1;
    }
    return methods->sq_contains(container, key);
}

/* Making an AttributeError, with its suggestions, would cost more than all the rest. */
static int has_attribute(PyObject *value, PyObject *name)
{
    PyObject *member;
    int status = optional_attribute(value, name, &member);
    Py_XDECREF(member);
    return status;
}

static int has_length(PyObject *value, Py_ssize_t n)
{
    if (PyList_Check(value) || PyTuple_Check(value)) { /* past what its class says */
        return PySequence_Fast_GET_SIZE(value) == n;
    }
    Py_ssize_t size = is_dict_or_frozen(value) ? PyDict_Size(value) : PyObject_Size(value);
    return size < 0 ? -1 : size == n;
}

static int has_code(PyObject *value, uintptr_t address)
{
    if (PyFunction_Check(value)) {
        return (uintptr_t)PyFunction_GET_CODE(value) == address;
    }
    PyObject *code = PyObject_GetAttrString(value, "__code__");
    int same = code != NULL && PyCode_Check(code) && (uintptr_t)code == address;
    int status = code == NULL ? -1 : same;
    Py_XDECREF(code);
    return status;
}

typedef struct {
    uintptr_t address;
    int operand;
} Operand;

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = ((const Operand *)a)->address, y = ((const Operand *)b)->address;
    return (x > y) - (x < y);
}

static int are_increasing(const Instruction *i, PyObject **registers)
{
    Py_ssize_t k = 1;
    while (k < i->n && (uintptr_t)registers[i->operands[k - 1]] < (uintptr_t)registers[i->operands[k]]) {
        k++;
    }
    return k >= i->n;
}

/* The operands are left in the order of their objects, which the next run will often find as they are. */
static int are_distinct(const Instruction *i, PyObject **registers)
{
    if (are_increasing(i, registers)) {
        return 1;
    }
    Operand *found = PyMem_Malloc((size_t)i->n * sizeof *found);
    if (found == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < i->n; k++) {
        found[k] = (Operand){(uintptr_t)registers[i->operands[k]], i->operands[k]};
    }
    qsort(found, (size_t)i->n, sizeof *found, compare_addresses);
    for (Py_ssize_t k = 0; k < i->n; k++) {
        i->operands[k] = found[k].operand;
    }
    PyMem_Free(found);
    return are_increasing(i, registers);
}

static int call_check(const Instruction *i, PyObject **registers)
{
    PyObject *small[16];
    PyObject **arguments = i->n <= 16 ? small : PyMem_Malloc((size_t)i->n * sizeof *arguments);
    if (arguments == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < i->n; k++) {
        arguments[k] = i->operands[k] < 0 ? Py_None : registers[i->operands[k]];
    }
    PyObject *answer = PyObject_Vectorcall(i->obj, arguments, (size_t)i->n, NULL);
    int status = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (arguments != small) {
        PyMem_Free(arguments);
    }
    return status;
}

static int inverted(int status)
{
    return status < 0 ? status : !status;
}

static int run_load(Program *program, const Instruction *i, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *function, PyObject *a, PyObject **slot)
{
    switch (i->op) {
    case OP_LOAD_ARG:
        return i->n < nargs ? found_borrowed(slot, args[i->n]) : 0;
    case OP_LOAD_CONSTANT:
        return found_borrowed(slot, i->obj);
    case OP_LOAD_FUNCTION:
        return found_borrowed(slot, function);
    case OP_LOAD_GLOBALS:
        return load_globals(slot, function);
    case OP_LOAD_BUILTIN:
        return load_builtin(slot, function, i->obj);
    case OP_LOAD_CLOSURE:
        return load_closure(slot, function, i->n);
    case OP_LOAD_ATTR:
        return found(slot, PyObject_GetAttr(a, i->obj));
    case OP_LOAD_DICT:
        return found(slot, PyObject_GetAttr(a, i->obj));
    case OP_LOAD_ITEM:
        return load_item(slot, a, i->obj);
    case OP_LOAD_TYPE:
        return found_borrowed(slot, (PyObject *)Py_TYPE(a));
    case OP_LOAD_KEY:
        return load_nth(&program->cursor, slot, a, i->n, 0);
    case OP_LOAD_VALUE:
        return load_nth(&program->cursor, slot, a, i->n, 1);
    case OP_LOAD_CELL:
        return load_cell(slot, a);
    case OP_LOAD_CALL:
        return found(slot, PyObject_CallOneArg(i->obj, a));
    default:
        Py_UNREACHABLE();
    }
}

static int run_check(Program *program, const Instruction *i, PyObject *a, PyObject **registers)
{
    switch (i->op) {
    case OP_IS_TYPE:
        return (uintptr_t)Py_TYPE(a) == i->address;
    case OP_IS:
        return (uintptr_t)a == i->address;
    case OP_IS_NOT:
        return (uintptr_t)a != i->address;
    case OP_IS_CONSTANT:
        return same_constant(program, a, i->obj);
    case OP_HAS_LENGTH:
        return has_length(a, i->n);
    case OP_HAS_KEYS:
        return has_keys(program, a, i->obj);
    case OP_HAS_KEY:
        return contains(a, i->obj);
    case OP_HAS_NO_KEY:
        return inverted(contains(a, i->obj));
    case OP_HAS_LAYOUT:
        return class_holds(i, a);
    case OP_NOT_SUBCLASS:
        return registrations_hold(i, a);
    case OP_HAS_ATTR:
        return has_attribute(a, i->obj);
    case OP_HAS_NO_ATTR:
        return inverted(has_attribute(a, i->obj));
    case OP_HAS_CODE:
        return has_code(a, i->address);
    case OP_IS_TENSOR:
        return tensor_matches(program->specs + i->n, a);
    case OP_IS_PLAIN_LEAF:
        return is_plain_leaf(a, i->obj, i->n);
    case OP_IS_SAME:
        return a == registers[i->b];
    case OP_ARE_DISTINCT:
        return are_distinct(i, registers);
    case OP_SHARE_STORAGE:
        return tensors_share_storage(a, registers[i->b]);
    case OP_ARE_DISJOINT:
        return tensors_are_disjoint(i->operands, i->n, registers);
    case OP_ARE_ALL_DISJOINT:
        return tensors_are_all_disjoint(i->operands, i->n, registers);
    case OP_HAS_SHAPE:
        return shape_holds(program->shapes + i->n, registers);
    case OP_CALL_CHECK:
        return call_check(i, registers);
    default:
        Py_UNREACHABLE();
    }
}

static int run_bare(Program *program, const Instruction *i, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *function, PyObject **registers)
{
    PyObject *a = i->a < 0 ? NULL : registers[i->a];
    if (i->op < OP_FIRST_CHECK) {
        return run_load(program, i, args, nargs, function, a, registers + i->dst);
    }
    return run_check(program, i, a, registers);
}

PyObject *enter_no_torch_function(PyObject *no_torch_function)
{
    PyObject *manager = PyObject_CallNoArgs(no_torch_function);
    PyObject *entered = manager == NULL ? NULL : PyObject_CallMethod(manager, "__enter__", NULL);
    if (entered == NULL) {
        Py_CLEAR(manager);
    }
    Py_XDECREF(entered);
    return manager;
}

int leave_no_torch_function(PyObject *manager, int status)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *left = PyObject_CallMethod(manager, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == NULL) {
        status = -1;
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(left);
    Py_DECREF(manager);
    return status;
}

int run_instruction(Program *program, const Instruction *i, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *function, PyObject **registers)
{
    if (program->no_torch_function != NULL && tensor_touched_by(i, registers)) {
        PyObject *manager = enter_no_torch_function(program->no_torch_function);
        if (manager == NULL) {
            return -1;
        }
        return leave_no_torch_function(manager, run_bare(program, i, args, nargs, function, registers));
    }
    return run_bare(program, i, args, nargs, function, registers);
}
