/* BackwardCall: the `apply` of an autograd node's class.
 *
 * In the usual case it gives a compiled program the tensors that the node has saved, and the tangents, with no frame of
 * Python before the program's. Usual: the tangents are plain tensors, absent where the program takes none, and no question
 * in `unusual` is answered with yes. Every other call is passed on to `otherwise`. A tangent with other strides than
 * the program takes is copied, one for which these are symbolic is given to `arrange`.
 *
 * A call of this type never changes; what runs may let go of it, or run it again.
 */

#include "calls/backward.h"

#include "tensors/torch_layout.h"
#include "tensors/torch_shim.h"

#include <structmember.h>

typedef struct {
    uint64_t keys;
    int64_t dim; /* ABSENT: there is no such tangent */
    int64_t *strides; /* NULL: symbolic ones */
    PyObject *layout; /* the strides as a tuple; or, where they are symbolic, the dimensions by stride as a list */
} Tangent;

#define ABSENT (-1)
#define NO_GRADIENT (-1)
#define NOTHING_SAVED (-1)

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *otherwise;  /* called as this is */
    PyObject *unusual;    /* a tuple of callables without arguments */
    PyObject *retained;   /* a callable without arguments: whether the running pass retains its graph */
    PyObject *dropped;    /* a tuple of names: attributes of the node that become None in its last pass */
    PyObject *arrange;    /* returns its first argument, or a copy, in the layout that its second says */
    PyObject *program;    /* takes a list, which it empties */
    PyObject *numbers;    /* the name of an attribute of the node, a tuple that follows the saved tensors; or None */
    PyObject *plain;      /* the type of plain tensors */
    Py_ssize_t saved;     /* how many of the saved tensors the program takes, or NOTHING_SAVED */
    Py_ssize_t tangent_count, result_count;
    Tangent *tangents;
    Py_ssize_t *results;  /* positions among what the program returns, or NO_GRADIENT */
} BackwardCall;

static PyObject *saved_tensors_name, *clear_name;

/* ---- a call ---- */

static int is_plain(const BackwardCall *self, const Tangent *expected, PyObject *tangent)
{
    int64_t dim;
    if (expected->dim == ABSENT || tangent == Py_None) {
        return expected->dim == ABSENT && tangent == Py_None;
    }
    return (PyObject *)Py_TYPE(tangent) == self->plain && keys_of(tangent) == expected->keys &&
           shim.dim(handle_of(tangent), &dim) == 0 && dim == expected->dim;
}

/* A new reference to a plain tangent with the expected strides, but for dimensions of size 1. */
static PyObject *with_strides(const BackwardCall *self, const Tangent *expected, PyObject *tangent)
{
    int64_t *sizes, *strides;
    if (expected->strides == NULL) {
        return PyObject_CallFunctionObjArgs(self->arrange, tangent, expected->layout, NULL);
    }
    if (shim.sizes(handle_of(tangent), &sizes) != 0 || shim.strides(handle_of(tangent), &strides) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim failed on a tensor");
        return NULL;
    }
    for (int64_t k = 0; k < expected->dim; k++) {
        if (strides[k] != expected->strides[k] && sizes[k] != 1) {
            return PyObject_CallFunctionObjArgs(self->arrange, tangent, expected->layout, NULL);
        }
    }
    return Py_NewRef(tangent);
}

/* 1 or 0; -1 with an exception. */
static int answer(PyObject *question)
{
    PyObject *value = PyObject_CallNoArgs(question);
    int yes = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return yes;
}

static int is_usual(const BackwardCall *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != self->tangent_count + 1) {
        return 0;
    }
    for (Py_ssize_t k = 0; k < self->tangent_count; k++) {
        if (!is_plain(self, self->tangents + k, args[k + 1])) {
            return 0;
        }
    }
    int yes = 0;
    for (Py_ssize_t k = 0; yes == 0 && k < PyTuple_GET_SIZE(self->unusual); k++) {
        yes = answer(PyTuple_GET_ITEM(self->unusual, k));
    }
    return yes < 0 ? -1 : !yes;
}

/* The attribute as a tuple of at least `count` items. */
static PyObject *tuple_attribute(PyObject *node, PyObject *name, Py_ssize_t count)
{
    PyObject *found = PyObject_GetAttr(node, name);
    if (found != NULL && (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) < count)) {
        PyErr_Format(PyExc_RuntimeError, "%R of an autograd node is no tuple of %zd items", name, count);
        Py_CLEAR(found);
    }
    return found;
}

static int append_all(PyObject *list, PyObject *tuple, Py_ssize_t count)
{
    int status = 0;
    for (Py_ssize_t k = 0; status == 0 && tuple != NULL && k < count; k++) {
        status = PyList_Append(list, PyTuple_GET_ITEM(tuple, k));
    }
    return status;
}

static PyObject *list_of(const BackwardCall *self, PyObject *saved, PyObject *numbers, PyObject *const *tangents)
{
    PyObject *list = PyList_New(0);
    int status = list == NULL ? -1 : append_all(list, saved, self->saved);
    if (status == 0) {
        status = append_all(list, numbers, numbers == NULL ? 0 : PyTuple_GET_SIZE(numbers));
    }
    for (Py_ssize_t k = 0; status == 0 && k < self->tangent_count; k++) {
        if (self->tangents[k].dim != ABSENT) {
            PyObject *tangent = with_strides(self, self->tangents + k, tangents[k]);
            status = tangent == NULL ? -1 : PyList_Append(list, tangent);
            Py_XDECREF(tangent);
        }
    }
    if (status < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* What the program takes. It is then the only holder of the saved tensors, unless the graph is retained. */
static PyObject *arguments(const BackwardCall *self, PyObject *node, PyObject *const *tangents)
{
    PyObject *saved = NULL, *numbers = NULL, *list = NULL;
    int reads_saved = self->saved != NOTHING_SAVED, reads_numbers = self->numbers != Py_None;
    if (reads_saved) { /* raises where one was mutated or freed */
        saved = tuple_attribute(node, saved_tensors_name, self->saved);
    }
    if (reads_numbers && (saved != NULL || !reads_saved)) {
        numbers = tuple_attribute(node, self->numbers, 0);
    }
    if ((saved != NULL || !reads_saved) && (numbers != NULL || !reads_numbers)) {
        list = list_of(self, saved, numbers, tangents);
    }
    Py_XDECREF(saved);
    Py_XDECREF(numbers);
    return list;
}

static int release(const BackwardCall *self, PyObject *node)
{
    if (self->saved != NOTHING_SAVED) {
        PyObject *done = PyObject_CallMethodNoArgs(node, clear_name);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    if (PyTuple_GET_SIZE(self->dropped) == 0) {
        return 0;
    }
    int status = answer(self->retained);
    if (status != 0) {
        return status < 0 ? -1 : 0;
    }
    for (Py_ssize_t k = 0; status == 0 && k < PyTuple_GET_SIZE(self->dropped); k++) {
        status = PyObject_SetAttr(node, PyTuple_GET_ITEM(self->dropped, k), Py_None);
    }
    return status;
}

static PyObject *gradients(const BackwardCall *self, PyObject *made)
{
    PyObject *fast = PySequence_Fast(made, "a compiled pass returns a sequence");
    PyObject *results = fast == NULL ? NULL : PyTuple_New(self->result_count);
    for (Py_ssize_t k = 0; results != NULL && k < self->result_count; k++) {
        Py_ssize_t at = self->results[k];
        if (at >= PySequence_Fast_GET_SIZE(fast)) {
            PyErr_SetString(PyExc_RuntimeError, "a compiled pass has returned too few gradients");
            Py_CLEAR(results);
        } else {
            PyTuple_SET_ITEM(results, k, Py_NewRef(at < 0 ? Py_None : PySequence_Fast_GET_ITEM(fast, at)));
        }
    }
    Py_XDECREF(fast);
    return results;
}

static PyObject *run(const BackwardCall *self, PyObject *const *args)
{
    PyObject *list = arguments(self, args[0], args + 1);
    PyObject *made = NULL, *results = NULL;
    if (list != NULL && release(self, args[0]) == 0) {
        made = PyObject_CallOneArg(self->program, list);
    }
    Py_XDECREF(list);
    if (made != NULL) {
        results = gradients(self, made);
        Py_DECREF(made);
    }
    return results;
}

static PyObject *call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const BackwardCall *self = (const BackwardCall *)callable;
    if (self->otherwise == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the autograd node's class is gone");
        return NULL;
    }
    Py_INCREF(callable);
    int usual = kwnames != NULL ? 0 : is_usual(self, args, PyVectorcall_NARGS(nargsf));
    PyObject *result = NULL;
    if (usual > 0) {
        result = run(self, args);
    } else if (usual == 0) {
        result = PyObject_Vectorcall(self->otherwise, args, nargsf, kwnames);
    }
    Py_DECREF(callable);
    return result;
}

static PyObject *bind(PyObject *callable, PyObject *node, PyObject *type)
{
    return node == NULL || node == Py_None ? Py_NewRef(callable) : PyMethod_New(callable, node);
}

/* ---- its making: from tuples of ints ---- */

static int64_t *numbers_from(PyObject *tuple, Py_ssize_t *count)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of ints is needed");
        return NULL;
    }
    *count = PyTuple_GET_SIZE(tuple);
    int64_t *numbers = PyMem_Calloc((size_t)*count + 1, sizeof *numbers);
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t k = 0; k < *count; k++) {
        numbers[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, k));
        if (numbers[k] == -1 && PyErr_Occurred()) {
            PyMem_Free(numbers);
            return NULL;
        }
    }
    return numbers;
}

/* Each is (dispatch keys, layout), or None for one that is absent. */
static int take_tangent(Tangent *tangent, PyObject *given)
{
    unsigned long long keys;
    Py_ssize_t dim;
    PyObject *layout;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a tangent is (dispatch keys, layout), or None");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "KO", &keys, &layout)) {
        return -1;
    }
    if (PyList_Check(layout)) {
        dim = PyList_GET_SIZE(layout);
    } else if ((tangent->strides = numbers_from(layout, &dim)) == NULL) {
        return -1;
    }
    tangent->layout = Py_NewRef(layout);
    tangent->keys = keys;
    tangent->dim = dim;
    return 0;
}

static int take_tangents(BackwardCall *self, PyObject *tangents)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tangents);
    self->tangents = PyMem_Calloc((size_t)count + 1, sizeof *self->tangents);
    if (self->tangents == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; self->tangent_count < count; self->tangent_count++) {
        Tangent *tangent = self->tangents + self->tangent_count;
        PyObject *given = PyTuple_GET_ITEM(tangents, self->tangent_count);
        tangent->dim = ABSENT;
        if (given != Py_None && take_tangent(tangent, given) < 0) {
            return -1;
        }
    }
    return 0;
}

static int take_results(BackwardCall *self, PyObject *results)
{
    int64_t *positions = numbers_from(results, &self->result_count);
    if (positions == NULL) {
        return -1;
    }
    self->results = PyMem_Calloc((size_t)self->result_count + 1, sizeof *self->results);
    for (Py_ssize_t k = 0; self->results != NULL && k < self->result_count; k++) {
        self->results[k] = positions[k] < 0 ? NO_GRADIENT : (Py_ssize_t)positions[k];
    }
    PyMem_Free(positions);
    if (self->results == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *backward_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"otherwise", "unusual", "retained", "dropped", "arrange", "program",
                            "saved",     "numbers", "plain",    "tangents", "results", NULL};
    PyObject *otherwise, *unusual, *retained, *dropped, *arrange, *program, *numbers, *plain, *tangents, *results;
    Py_ssize_t saved;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OO!OOnOO!O!O!:BackwardCall", names, &otherwise, &PyTuple_Type,
                                     &unusual, &retained, &PyTuple_Type, &dropped, &arrange, &program, &saved,
                                     &numbers, &PyType_Type, &plain, &PyTuple_Type, &tangents, &PyTuple_Type,
                                     &results)) {
        return NULL;
    }
    if (!tensors_ready()) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor layout of this torch is not known");
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)plain, shim.base)) {
        PyErr_SetString(PyExc_TypeError, "plain tensors have a type of tensors");
        return NULL;
    }
    BackwardCall *self = (BackwardCall *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call;
    self->otherwise = Py_NewRef(otherwise);
    self->unusual = Py_NewRef(unusual);
    self->retained = Py_NewRef(retained);
    self->dropped = Py_NewRef(dropped);
    self->arrange = Py_NewRef(arrange);
    self->program = Py_NewRef(program);
    self->numbers = Py_NewRef(numbers);
    self->plain = Py_NewRef(plain);
    self->saved = saved < 0 ? NOTHING_SAVED : saved;
    if (take_tangents(self, tangents) < 0 || take_results(self, results) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- its end ---- */

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    BackwardCall *self = (BackwardCall *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->otherwise);
    Py_VISIT(self->unusual);
    Py_VISIT(self->retained);
    Py_VISIT(self->dropped);
    Py_VISIT(self->arrange);
    Py_VISIT(self->program);
    Py_VISIT(self->numbers);
    Py_VISIT(self->plain);
    return 0;
}

/* `otherwise` and `program` lead to the node's class, and the class here: the rest cannot be part of a cycle. */
static int clear(PyObject *object)
{
    BackwardCall *self = (BackwardCall *)object;
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->program);
    return 0;
}

static void dealloc(PyObject *object)
{
    BackwardCall *self = (BackwardCall *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_CLEAR(self->unusual);
    Py_CLEAR(self->retained);
    Py_CLEAR(self->dropped);
    Py_CLEAR(self->arrange);
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->plain);
    for (Py_ssize_t k = 0; self->tangents != NULL && k <= self->tangent_count; k++) {
        Py_XDECREF(self->tangents[k].layout);
        PyMem_Free(self->tangents[k].strides); /* the last is the one that could not be taken, if any */
    }
    PyMem_Free(self->tangents);
    PyMem_Free(self->results);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BackwardCall, vectorcall), READONLY, NULL},
    {"otherwise", T_OBJECT, offsetof(BackwardCall, otherwise), READONLY, "What unusual calls are passed on to."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The usual pass of an autograd node, without Python before its program."},
    {Py_tp_new, backward_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bind},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "framesmith_guards._check.BackwardCall",
    .basicsize = sizeof(BackwardCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

PyObject *backward_call_type(void)
{
    if (saved_tensors_name == NULL) {
        saved_tensors_name = PyUnicode_InternFromString("saved_tensors");
        clear_name = PyUnicode_InternFromString("maybe_clear_saved_tensors");
    }
    return saved_tensors_name == NULL || clear_name == NULL ? NULL : PyType_FromSpec(&spec);
}
