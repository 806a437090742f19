/* The module: the Program type, its capsule for framesmith_frames, and the set-up of tensors. */

#include "api/assemble.h"
#include "calls/backward.h"
#include "calls/lookups.h"
#include "facts/dict_tags.h"
#include "run/run.h"
#include "tensors/leaves.h"
#include "tensors/shapes.h"
#include "tensors/torch_layout.h"
#include "tensors/torch_modes.h"

#include <structmember.h>

/* The struct of framesmith_frames' check_abi.h, version 1. */
typedef struct {
    int version;
    int (*check)(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **extracted);
} framesmith_check_v1;

#define SMALL 32 /* registers on the C stack */

/* Any Exception is a miss; what is not one (KeyboardInterrupt, SystemExit) passes. */
static int settled(int status)
{
    if (status < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        return 0;
    }
    return status;
}

/* An input that was asked for twice: the register has been emptied where it came first. */
static PyObject *taken_earlier(const Program *program, PyObject *inputs, Py_ssize_t position)
{
    Py_ssize_t first = 0;
    while (program->inputs[first] != program->inputs[position]) {
        first++;
    }
    return Py_NewRef(PyTuple_GET_ITEM(inputs, first));
}

/* The registers give up what they hold: hundreds of reference counts need not be touched once more. */
static PyObject *take_inputs(const Program *program, PyObject **registers)
{
    PyObject *inputs = PyTuple_New(program->input_count);
    for (Py_ssize_t k = 0; inputs != NULL && k < program->input_count; k++) {
        PyObject **slot = registers + program->inputs[k];
        PyTuple_SET_ITEM(inputs, k, *slot != NULL ? *slot : taken_earlier(program, inputs, k));
        *slot = NULL;
    }
    return inputs;
}

static int check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **extracted)
{
    Program *program = (Program *)self;
    PyObject *small[SMALL];
    PyObject **registers = small;
    if (program->registers > SMALL) {
        registers = PyMem_Malloc((size_t)program->registers * sizeof *registers);
        if (registers == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    memset(registers, 0, (size_t)program->registers * sizeof *registers);
    int status = settled(program_run(program, args, nargs, function, registers));
    if (status == 1 && extracted != NULL) {
        *extracted = take_inputs(program, registers);
        status = *extracted == NULL ? -1 : 1;
    }
    for (int k = 0; k < program->registers; k++) {
        Py_XDECREF(registers[k]);
    }
    if (registers != small) {
        PyMem_Free(registers);
    }
    return status;
}

static const framesmith_check_v1 CHECK_V1 = {1, check};

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return type->tp_alloc(type, 0);
}

static PyObject *program_load(Program *program, PyObject *description)
{
    if (program->registers != 0 || program->instructions != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a program is loaded once");
        return NULL;
    }
    if (!PyTuple_Check(description)) {
        PyErr_SetString(PyExc_TypeError, "a program's description is a tuple");
        return NULL;
    }
    if (program_assemble(program, description) < 0) {
        program_clear(program);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *program_kill(Program *program, PyObject *unused)
{
    program->dead = 1;
    Py_RETURN_NONE;
}

static PyObject *parse_and_check(PyObject *self, PyObject *args, PyObject *kwargs, int *status, int extract)
{
    PyObject *extracted = NULL;
    *status = -1;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a program takes (args, function) by position");
        return NULL;
    }
    if (PyTuple_GET_SIZE(args) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(args, 0))) {
        PyErr_SetString(PyExc_TypeError, "a program takes a tuple of arguments and a function");
        return NULL;
    }
    PyObject *values = PyTuple_GET_ITEM(args, 0);
    *status = check(self, PySequence_Fast_ITEMS(values), PyTuple_GET_SIZE(values), PyTuple_GET_ITEM(args, 1),
                    extract ? &extracted : NULL);
    return extracted;
}

static PyObject *program_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int status = -1;
    parse_and_check(self, args, kwargs, &status, 0);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

static PyObject *program_extract(PyObject *self, PyObject *args)
{
    int status = -1;
    PyObject *extracted = parse_and_check(self, args, NULL, &status, 1);
    if (status < 0) {
        return NULL;
    }
    return extracted == NULL ? Py_NewRef(Py_None) : extracted;
}

static PyObject *program_capsule(PyObject *self, void *closure)
{
    return PyCapsule_New((void *)&CHECK_V1, "framesmith.check.v1", NULL);
}

/* For tests and reports: per block, (hits, recordings, whether it is proved now). */
static PyObject *program_blocks(Program *program, void *closure)
{
    PyObject *blocks = PyTuple_New(program->block_count);
    for (Py_ssize_t k = 0; blocks != NULL && k < program->block_count; k++) {
        const Block *block = program->blocks + k;
        PyObject *row = Py_BuildValue("KKO", (unsigned long long)block->hits, (unsigned long long)block->records,
                                      block->proof == NULL ? Py_False : Py_True);
        if (row == NULL) {
            Py_CLEAR(blocks);
        } else {
            PyTuple_SET_ITEM(blocks, k, row);
        }
    }
    return blocks;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    if (PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE)) {
        Py_VISIT(Py_TYPE(self));
    }
    return program_traverse((Program *)self, visit, arg);
}

static int clear(PyObject *self)
{
    program_clear((Program *)self);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (((Program *)self)->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    program_clear((Program *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef program_methods[] = {
    {"load", (PyCFunction)program_load, METH_O, "Assemble the program from its description; once."},
    {"kill", (PyCFunction)program_kill, METH_NOARGS, "Miss for ever: a guarded object is gone."},
    {"run_extract", program_extract, METH_VARARGS, "The inputs as a tuple if all guards hold, else None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"__framesmith_check__", program_capsule, NULL, "The capsule by which framesmith_frames calls the check.", NULL},
    {"blocks", (getter)program_blocks, NULL, "Per skippable block: (hits, recordings, proved now).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef program_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Program, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "A native guard program: program(args, function) -> bool."},
    {Py_tp_new, program_new},
    {Py_tp_call, program_call},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {Py_tp_members, program_members},
    {0, NULL},
};

static PyType_Spec program_spec = {
    .name = "framesmith_guards._check.Program",
    .basicsize = sizeof(Program),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = program_slots,
};

static PyMethodDef functions[] = {
    {"tensors_setup", tensors_setup, METH_VARARGS, "Find torch's shim and offsets; None, or why not."},
    {"tensors_probe", tensors_probe, METH_O, "(dtype, device type, device index, keys, metadata) of a tensor."},
    {"tensors_device_type", tensors_device_type, METH_O, "The shim's number of a device type, or None."},
    {"modes_find", modes_find, METH_VARARGS, "The bits of modes that can be read, given two dispatch keys."},
    {"modes_read", modes_read, METH_NOARGS, "The bits found of modes that are active in this thread."},
    {"tensors_find_grad", tensors_find_grad, METH_VARARGS, "Find what requires_grad is made of, in probes."},
    {"tensors_requires_grad", tensors_requires_grad, METH_O, "requires_grad as programs see it."},
    {"leaves_setup", leaves_setup, METH_VARARGS, "Find what autograd does at leaves."},
    {"tensors_use_bytes", tensors_use_bytes, METH_O, "Allow unchanged tensors to be recognised by their bytes."},
    {"interned_lookups", interned_lookups, METH_VARARGS, "A subclass that looks up names as interned ones."},
    {NULL, NULL, 0, NULL},
};

static PyObject *opcodes(void)
{
    static const char *const names[] = {
#define X(name) #name,
        FOR_EACH_OPCODE(X)
#undef X
    };
    return numbers_by_name(names, OP_COUNT);
}

static int add(PyObject *module, const char *name, PyObject *value)
{
    int status = value == NULL ? -1 : PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return status;
}

static int module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "framesmith_guards works in the main interpreter only");
        return -1;
    }
    if (dict_tags_setup() < 0 || add(module, "Program", PyType_FromSpec(&program_spec)) < 0 ||
        add(module, "BackwardCall", backward_call_type()) < 0 || add(module, "OPCODES", opcodes()) < 0 ||
        add(module, "SHAPE_OPERATORS", shape_operators()) < 0 ||
        add(module, "PROPERTIES", tensor_properties()) < 0 || add(module, "MODES", mode_names()) < 0) {
        return -1;
    }
    return 0;
}

/* Without a slot that says more, CPython itself refuses the module where interpreters have a GIL of their own. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "framesmith_guards._check",
    .m_doc = "Native guard programs; see instruction.h.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__check(void)
{
    return PyModuleDef_Init(&definition);
}
