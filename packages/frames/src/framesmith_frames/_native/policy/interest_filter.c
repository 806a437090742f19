/* Note [Reach]: of interest are the modules of the packages that the callback named, the definitions in them, and instances
 * of classes that derive from theirs. A call reaches the objects that its arguments and closure hold and the objects that its
 * code names. Objects are traversed by `tp_traverse`, as the garbage collector does it: for all types, without running Python
 * code and without making attributes' dicts. Functions, frames and modules are not traversed, for they reach everything.
 *
 * Note [Deep and shallow search]: a deep search costs a microsecond, so it is done at calls 1, 2, 4, 8... of a code whose calls
 * are filtered. The others get a shallow search of the arguments and the objects that these hold; after 64 filtered calls
 * of a code, most calls get a search of the arguments alone. A miss costs little: the function that is later called with the
 * object of interest itself is offered.
 *
 * Note [Trust]: a filtered call is watched: the hook sees the calls inside it. Once nothing was found inside several of them,
 * the next ones are not watched, and run as without a hook (evaluate_unwatched in hook/evaluator.c). The calls that get a deep
 * search are watched again. */

#include "policy/interest_filter.h"

enum { SHALLOW_DEPTH = 1, SHALLOW_OBJECTS = 24, SHALLOW_AT_FIRST = 64, SHALLOW_EVERY = 16 };
enum { DEEP_DEPTH = 3, DEEP_OBJECTS = 128, NAMED_DEPTH = 1, NAMED_OBJECTS = 16 };
enum { CALLEES = 1 }; /* depth to which named functions are followed */
enum { CALLS_TO_TRUST = 4 };
enum { FOUND = 1, EXHAUSTED = -1 };

static PyObject *module_attribute = NULL, *name_attribute = NULL;

/* ---- names of modules ---- */

static int text_in_packages(const Interest *interest, const char *text, Py_ssize_t length)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(interest->packages); i++) {
        Py_ssize_t size;
        const char *package = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(interest->packages, i), &size);
        if (package != NULL && length >= size && memcmp(text, package, size) == 0 && (length == size || text[size] == '.')) {
            return 1;
        }
    }
    return 0;
}

static int in_packages(const Interest *interest, PyObject *name)
{
    if (name == NULL || !PyUnicode_Check(name)) {
        return 0;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL) {
        PyErr_Clear(); /* lone surrogates */
        return 0;
    }
    return text_in_packages(interest, text, length);
}

/* Borrowed, or NULL without an exception. */
static PyObject *item_or_null(PyObject *dict, PyObject *key)
{
    PyObject *value = dict == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    if (value == NULL) {
        PyErr_Clear();
    }
    return value;
}

/* ---- types ---- */

static int is_defined_in_packages(const Interest *interest, PyTypeObject *type)
{
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        return in_packages(interest, item_or_null(type->tp_dict, module_attribute));
    }
    return text_in_packages(interest, type->tp_name, (Py_ssize_t)strlen(type->tp_name));
}

static int derives_from_packages(const Interest *interest, PyTypeObject *type)
{
    PyObject *bases = type->tp_mro;
    for (Py_ssize_t i = 0; bases != NULL && i < PyTuple_GET_SIZE(bases); i++) {
        PyObject *base = PyTuple_GET_ITEM(bases, i);
        if (PyType_Check(base) && is_defined_in_packages(interest, (PyTypeObject *)base)) {
            return 1;
        }
    }
    return 0;
}

static Kind classify(const Interest *interest, PyTypeObject *type)
{
    if (derives_from_packages(interest, type)) {
        return INTERESTING;
    }
    if (PyType_HasFeature(type, Py_TPFLAGS_TYPE_SUBCLASS)) {
        return CLASS;
    }
    if (PyType_IsSubtype(type, &PyModule_Type)) {
        return MODULE;
    }
    if (type == &PyFunction_Type) {
        return FUNCTION;
    }
    if (type == &PyCFunction_Type) {
        return BUILTIN;
    }
    if (is_lazy_import_type(type)) {
        return LAZY_IMPORT;
    }
    if (type == &PyFrame_Type || type == &PyTraceBack_Type || type == &PyCode_Type) {
        return LEAF;
    }
    return PyType_IS_GC(type) && type->tp_traverse != NULL ? OPEN : LEAF;
}

static Kind kind_of(Interest *interest, PyTypeObject *type)
{
    KnownType *known = &interest->types[((uintptr_t)type >> 4) & (TYPES_REMEMBERED - 1)];
    unsigned int version = type->tp_version_tag;
    if (version != 0 && known->type == type && known->version == version) {
        return known->kind;
    }
    Kind kind = classify(interest, type);
    if (version != 0) {
        *known = (KnownType){type, version, kind};
    }
    return kind;
}

/* ---- objects ---- */

typedef struct {
    Interest *interest;
    int inside;  /* inside an argument: only instances count, for registries hold classes and functions */
    int depth;   /* remaining depth */
    int objects; /* remaining number of objects */
} Search;

static int search_object(PyObject *object, void *argument);
static int is_interesting_function(Interest *interest, PyFunctionObject *function);

static int is_interesting_module(Interest *interest, PyObject *module)
{
    return in_packages(interest, item_or_null(PyModule_GetDict(module), name_attribute));
}

static int is_interesting_builtin(Interest *interest, PyCFunctionObject *builtin)
{
    PyObject *owner = builtin->m_self;
    if (owner == NULL || in_packages(interest, builtin->m_module)) {
        return in_packages(interest, builtin->m_module);
    }
    Kind kind = kind_of(interest, PyType_Check(owner) ? (PyTypeObject *)owner : Py_TYPE(owner));
    return kind == INTERESTING || (kind == MODULE && is_interesting_module(interest, owner));
}

/* A visitproc: FOUND for the name of a module of the packages, or of what is imported from one. */
static int search_lazy_import(PyObject *object, void *interest)
{
    if (is_lazy_import_type(Py_TYPE(object))) {
        return Py_TYPE(object)->tp_traverse(object, search_lazy_import, interest);
    }
    return in_packages(interest, object) ? FOUND : 0;
}

static int search_cells(PyObject *closure, Search *search)
{
    int status = 0;
    for (Py_ssize_t i = 0; closure != NULL && i < PyTuple_GET_SIZE(closure) && status == 0; i++) {
        PyObject *content = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        status = content == NULL ? 0 : search_object(content, search);
    }
    return status;
}

/* Whether a class, module or function itself is of interest. */
static int is_interesting_definition(Interest *interest, Kind kind, PyObject *object)
{
    switch (kind) {
    case CLASS:
        return kind_of(interest, (PyTypeObject *)object) == INTERESTING;
    case MODULE:
        return is_interesting_module(interest, object);
    case FUNCTION:
        return is_interesting_function(interest, (PyFunctionObject *)object);
    case BUILTIN:
        return is_interesting_builtin(interest, (PyCFunctionObject *)object);
    default:
        return 0;
    }
}

static int search_inside(PyObject *object, Kind kind, Search *search)
{
    Search further = {search->interest, 1, search->depth - (kind == OPEN), search->objects};
    int status = kind == OPEN ? Py_TYPE(object)->tp_traverse(object, search_object, &further)
                              : search_cells(((PyFunctionObject *)object)->func_closure, &further);
    search->objects = further.objects;
    return status;
}

/* A visitproc: FOUND, 0 (goes on) or EXHAUSTED. */
static int search_object(PyObject *object, void *argument)
{
    Search *search = argument;
    if (search->objects-- <= 0) {
        return EXHAUSTED;
    }
    Kind kind = kind_of(search->interest, Py_TYPE(object));
    if (kind == INTERESTING) {
        return FOUND;
    }
    if (kind == LEAF) {
        return 0;
    }
    if (kind == LAZY_IMPORT) {
        return search_lazy_import(object, search->interest);
    }
    if (PyMethod_Check(object)) {
        int status = search_object(PyMethod_GET_SELF(object), search);
        return status == 0 ? search_object(PyMethod_GET_FUNCTION(object), search) : status;
    }
    if (kind != OPEN && !search->inside && is_interesting_definition(search->interest, kind, object)) {
        return FOUND;
    }
    int is_open = kind == FUNCTION || (kind == OPEN && search->depth > 0 && PyObject_IS_GC(object));
    return is_open ? search_inside(object, kind, search) : 0;
}

static int reaches(Interest *interest, PyObject *object, int depth, int objects)
{
    Search search = {interest, 0, depth, objects};
    return search_object(object, &search) == FOUND;
}

/* The arguments of a call, those in `*args` and `**kwargs` included, and its closure. */
typedef struct {
    PyObject *const *args;
    int plain; /* number of the other arguments */
    PyObject *variadic, *keywords, *closure;
} Inputs;

static Inputs call_inputs(const Call *call)
{
    PyCodeObject *code = call->code;
    PyObject *const *args = call->args;
    int plain = code->co_argcount + code->co_kwonlyargcount;
    int variadic = (code->co_flags & CO_VARARGS) != 0;
    Inputs all = {args, plain, NULL, NULL, ((PyFunctionObject *)call->function)->func_closure};
    if (variadic) {
        all.variadic = args[plain];
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        all.keywords = args[plain + variadic];
    }
    return all;
}

static int search_inputs(const Inputs *all, Search *search)
{
    int status = 0;
    for (int i = 0; i < all->plain && status == 0; i++) {
        status = search_object(all->args[i], search);
    }
    for (Py_ssize_t i = 0; all->variadic != NULL && i < PyTuple_GET_SIZE(all->variadic) && status == 0; i++) {
        status = search_object(PyTuple_GET_ITEM(all->variadic, i), search);
    }
    PyObject *value;
    Py_ssize_t position = 0;
    while (all->keywords != NULL && status == 0 && PyDict_Next(all->keywords, &position, NULL, &value)) {
        status = search_object(value, search);
    }
    return status == 0 ? search_cells(all->closure, search) : status;
}

/* Breadth first: all arguments at one depth before the next. */
static int inputs_reach(Interest *interest, const Inputs *all, int depth, int objects)
{
    int status = 0;
    for (int reach = 0; reach <= depth && status != FOUND; reach++) {
        Search search = {interest, 0, reach, objects};
        status = search_inputs(all, &search);
    }
    return status == FOUND;
}

/* ---- names in the code ---- */

static int code_reaches(Interest *interest, PyCodeObject *code, PyObject *globals, int callees);

/* Whether calls of a function are offered whatever the arguments are; remembered in the state of its code. */
static int is_interesting_function(Interest *interest, PyFunctionObject *function)
{
    if (in_packages(interest, function->func_module)) {
        return 1;
    }
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    CodeState *state = code_state_get(code);
    Cache *cache = state == NULL ? NULL : cache_get(state, interest->cache_id);
    if (cache == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (!cache->names_known) {
        cache->names_known = 1;
        cache->interesting |= code_reaches(interest, code, function->func_globals, 0);
    }
    return cache->interesting;
}

/* A named function counts as part of the code that names it; `self.method` is found when it is called. */
static int named_reaches(Interest *interest, PyObject *value, int callees)
{
    if (PyFunction_Check(value)) {
        return callees > 0 ? is_interesting_function(interest, (PyFunctionObject *)value)
                           : in_packages(interest, ((PyFunctionObject *)value)->func_module);
    }
    return reaches(interest, value, NAMED_DEPTH, NAMED_OBJECTS);
}

/* The attributes `module.name` of a named module. */
static int attributes_reach(Interest *interest, PyObject *module, PyObject *names, int callees)
{
    PyObject *namespace = PyModule_GetDict(module);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = item_or_null(namespace, PyTuple_GET_ITEM(names, i));
        if (value != NULL && named_reaches(interest, value, callees)) {
            return 1;
        }
    }
    return 0;
}

static int nested_reaches(Interest *interest, PyCodeObject *code, PyObject *globals, int callees)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); i++) {
        PyObject *constant = PyTuple_GET_ITEM(code->co_consts, i);
        if (PyCode_Check(constant) && code_reaches(interest, (PyCodeObject *)constant, globals, callees)) {
            return 1;
        }
    }
    return 0;
}

static int code_reaches(Interest *interest, PyCodeObject *code, PyObject *globals, int callees)
{
    PyObject *names = code->co_names;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        PyObject *value = item_or_null(globals, name);
        if (in_packages(interest, name)) {
            return 1; /* it may be imported inside the function */
        }
        if (value != NULL && (named_reaches(interest, value, callees) ||
                              (PyModule_Check(value) && attributes_reach(interest, value, names, callees)))) {
            return 1;
        }
    }
    return nested_reaches(interest, code, globals, callees);
}

/* ---- calls ---- */

static int is_power_of_two(unsigned long long number) { return (number & (number - 1)) == 0; }

Filtering filter_call(Cache *cache, const Call *call)
{
    Interest *interest = cache->interest;
    if (interest == NULL || cache->interesting) {
        return OFFERED;
    }
    Inputs all = call_inputs(call);
    unsigned long long number = cache->filtered + 1;
    if (!is_power_of_two(number)) {
        int depth = number < SHALLOW_AT_FIRST || number % SHALLOW_EVERY == 0 ? SHALLOW_DEPTH : 0;
        if (inputs_reach(interest, &all, depth, SHALLOW_OBJECTS)) {
            return OFFERED;
        }
        cache->filtered = number;
        if (cache->uninteresting_calls < CALLS_TO_TRUST) {
            return EAGER_WATCHED;
        }
        return cache->calls_inside ? EAGER_UNWATCHED : EAGER_LEAF;
    }
    cache->names_known = 1;
    PyFunctionObject *called = (PyFunctionObject *)call->function;
    if (in_packages(interest, called->func_module) || code_reaches(interest, call->code, called->func_globals, CALLEES)) {
        cache->interesting = 1;
        return OFFERED;
    }
    if (inputs_reach(interest, &all, DEEP_DEPTH, DEEP_OBJECTS)) {
        return OFFERED;
    }
    cache->filtered = number;
    return EAGER_WATCHED;
}

int interest_filter_init(void)
{
    module_attribute = PyUnicode_InternFromString("__module__");
    name_attribute = PyUnicode_InternFromString("__name__");
    return module_attribute == NULL || name_attribute == NULL ? -1 : 0;
}
