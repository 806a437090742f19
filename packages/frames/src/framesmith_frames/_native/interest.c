/* Whether a call reaches anything that a callback is interested in, see `set_interest_filter` in the README.
 *
 * Note [Reach]: interesting are the modules of the packages that the callback named, what is defined in them, and instances of
 * classes that have one of their classes among their bases. A call reaches what its arguments and its closure hold, and what
 * its code names. Objects are looked into by `tp_traverse`, as the garbage collector does: for every kind alike, without
 * running Python code and without making attributes' dicts. Functions, frames and modules are not looked into, for they hold
 * everything.
 *
 * Note [Two looks]: the close look costs a microsecond, so it is for calls 1, 2, 4, 8... of a code that has been left alone;
 * the others get a glance at the arguments and what these hold themselves, and most calls of a code that has been left alone
 * for long at the arguments only. What a glance misses costs little: the function
 * that is handed the thing itself is asked about.
 *
 * Note [Trust]: a call that is left alone is watched: the hook sees the calls inside it. Once nothing was found in several
 * of them, the next are not watched, and run as without a hook (see evaluate_unwatched in hook.c), but for those that get
 * the close look, which are watched again. */

#include "native.h"

enum { TYPES_REMEMBERED = 512 }; /* a power of two */
enum { GLANCE_DEPTH = 1, GLANCE_OBJECTS = 24, GLANCES_AT_FIRST = 64, GLANCE_EVERY = 16 };
enum { CLOSE_DEPTH = 3, CLOSE_OBJECTS = 128, NAMED_DEPTH = 1, NAMED_OBJECTS = 16 };
enum { CALLEES = 1 }; /* names of functions are followed so far */
enum { CALLS_TO_TRUST = 4 };
enum { FOUND = 1, TIRED = -1 };

typedef enum { UNKNOWN, LEAF, OPEN, CLASS, MODULE, FUNCTION, BUILTIN, INTERESTING } Kind;

typedef struct {
    PyTypeObject *type; /* borrowed: compared together with the version, which no other type has had or will have */
    unsigned int version;
    Kind kind;
} KnownType;

struct Interest {
    Interest *next;
    Py_ssize_t users;         /* the list, and caches */
    unsigned long long cache; /* of the callback */
    PyObject *packages; /* tuple of str */
    KnownType types[TYPES_REMEMBERED];
};

static Interest *interests = NULL;
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
static PyObject *quiet_item(PyObject *dict, PyObject *key)
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
        return in_packages(interest, quiet_item(type->tp_dict, module_attribute));
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
    int inside;  /* within an argument, not one itself: only instances count, for registries name classes and functions */
    int depth;   /* how much further to look into objects */
    int objects; /* how many more to look at */
} Look;

static int look_at(PyObject *object, void *argument);
static int is_interesting_function(Interest *interest, PyFunctionObject *function);

static int is_interesting_module(Interest *interest, PyObject *module)
{
    return in_packages(interest, quiet_item(PyModule_GetDict(module), name_attribute));
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

static int look_at_cells(PyObject *closure, Look *look)
{
    int status = 0;
    for (Py_ssize_t i = 0; closure != NULL && i < PyTuple_GET_SIZE(closure) && status == 0; i++) {
        PyObject *content = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        status = content == NULL ? 0 : look_at(content, look);
    }
    return status;
}

/* Classes, modules and functions: whether they themselves are meant. */
static int look_at_definition(Interest *interest, Kind kind, PyObject *object)
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

static int look_into(PyObject *object, Kind kind, Look *look)
{
    Look further = {look->interest, 1, look->depth - (kind == OPEN), look->objects};
    int status = kind == OPEN ? Py_TYPE(object)->tp_traverse(object, look_at, &further)
                              : look_at_cells(((PyFunctionObject *)object)->func_closure, &further);
    look->objects = further.objects;
    return status;
}

/* FOUND, 0, or TIRED; as a visitproc, anything but 0 ends the visit. */
static int look_at(PyObject *object, void *argument)
{
    Look *look = argument;
    if (look->objects-- <= 0) {
        return TIRED;
    }
    Kind kind = kind_of(look->interest, Py_TYPE(object));
    if (kind == INTERESTING) {
        return FOUND;
    }
    if (kind == LEAF) {
        return 0;
    }
    if (PyMethod_Check(object)) {
        int status = look_at(PyMethod_GET_SELF(object), look);
        return status == 0 ? look_at(PyMethod_GET_FUNCTION(object), look) : status;
    }
    if (kind != OPEN && !look->inside && look_at_definition(look->interest, kind, object)) {
        return FOUND;
    }
    int is_open = kind == FUNCTION || (kind == OPEN && look->depth > 0 && PyObject_IS_GC(object));
    return is_open ? look_into(object, kind, look) : 0;
}

static int reaches(Interest *interest, PyObject *object, int depth, int objects)
{
    Look look = {interest, 0, depth, objects};
    return look_at(object, &look) == FOUND;
}

/* The arguments of a call: what is in `*args` and `**kwargs` are arguments of their own. */
typedef struct {
    PyObject *const *args;
    int plain; /* how many of them are neither */
    PyObject *variadic, *keywords, *closure;
} Given;

static Given given(PyCodeObject *code, PyObject *function, PyObject *const *args)
{
    int plain = code->co_argcount + code->co_kwonlyargcount;
    int variadic = (code->co_flags & CO_VARARGS) != 0;
    Given all = {args, plain, NULL, NULL, ((PyFunctionObject *)function)->func_closure};
    if (variadic) {
        all.variadic = args[plain];
    }
    if (code->co_flags & CO_VARKEYWORDS) {
        all.keywords = args[plain + variadic];
    }
    return all;
}

static int look_at_given(const Given *all, Look *look)
{
    int status = 0;
    for (int i = 0; i < all->plain && status == 0; i++) {
        status = look_at(all->args[i], look);
    }
    for (Py_ssize_t i = 0; all->variadic != NULL && i < PyTuple_GET_SIZE(all->variadic) && status == 0; i++) {
        status = look_at(PyTuple_GET_ITEM(all->variadic, i), look);
    }
    PyObject *value;
    Py_ssize_t place = 0;
    while (all->keywords != NULL && status == 0 && PyDict_Next(all->keywords, &place, NULL, &value)) {
        status = look_at(value, look);
    }
    return status == 0 ? look_at_cells(all->closure, look) : status;
}

/* All arguments at one depth before any is looked into further. */
static int given_reaches(Interest *interest, const Given *all, int depth, int objects)
{
    int status = 0;
    for (int reach = 0; reach <= depth && status != FOUND; reach++) {
        Look look = {interest, 0, reach, objects};
        status = look_at_given(all, &look);
    }
    return status == FOUND;
}

/* ---- what code names ---- */

static int code_reaches(Interest *interest, PyCodeObject *code, PyObject *globals, int callees);

/* Whether a function is to be asked about whatever it is called with; remembered with what is known of its code. */
static int is_interesting_function(Interest *interest, PyFunctionObject *function)
{
    if (in_packages(interest, function->func_module)) {
        return 1;
    }
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    CodeState *state = code_state_get(code);
    Cache *cache = state == NULL ? NULL : cache_get(state, interest->cache);
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

/* A function that is named counts as the code that names it; `self.method` is met when it is called. */
static int named_reaches(Interest *interest, PyObject *value, int callees)
{
    if (PyFunction_Check(value)) {
        return callees > 0 ? is_interesting_function(interest, (PyFunctionObject *)value)
                           : in_packages(interest, ((PyFunctionObject *)value)->func_module);
    }
    return reaches(interest, value, NAMED_DEPTH, NAMED_OBJECTS);
}

/* What the names stand for in a module that is one of them: `module.name`. */
static int attributes_reach(Interest *interest, PyObject *module, PyObject *names, int callees)
{
    PyObject *namespace = PyModule_GetDict(module);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = quiet_item(namespace, PyTuple_GET_ITEM(names, i));
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
        PyObject *value = quiet_item(globals, name);
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

Filtering filter_call(Cache *cache, PyCodeObject *code, PyObject *function, PyObject *const *args)
{
    Interest *interest = cache->interest;
    if (interest == NULL || cache->interesting) {
        return OFFERED;
    }
    Given all = given(code, function, args);
    unsigned long long call = cache->filtered + 1;
    if (!is_power_of_two(call)) {
        int depth = call < GLANCES_AT_FIRST || call % GLANCE_EVERY == 0 ? GLANCE_DEPTH : 0;
        if (given_reaches(interest, &all, depth, GLANCE_OBJECTS)) {
            return OFFERED;
        }
        cache->filtered = call;
        if (cache->quiet_calls < CALLS_TO_TRUST) {
            return EAGER_WATCHED;
        }
        return cache->calls_inside ? EAGER_UNWATCHED : EAGER_LEAF;
    }
    cache->names_known = 1;
    PyFunctionObject *called = (PyFunctionObject *)function;
    if (in_packages(interest, called->func_module) || code_reaches(interest, code, called->func_globals, CALLEES)) {
        cache->interesting = 1;
        return OFFERED;
    }
    if (given_reaches(interest, &all, CLOSE_DEPTH, CLOSE_OBJECTS)) {
        return OFFERED;
    }
    cache->filtered = call;
    return EAGER_WATCHED;
}

/* ---- registration ---- */

Interest *interest_of_cache(unsigned long long id)
{
    Interest *interest = interests;
    while (interest != NULL && interest->cache != id) {
        interest = interest->next;
    }
    if (interest != NULL) {
        interest->users++;
    }
    return interest;
}

void interest_release(Interest *interest)
{
    if (interest != NULL && --interest->users == 0) {
        Py_DECREF(interest->packages);
        PyMem_Free(interest);
    }
}

void interest_forget(unsigned long long id)
{
    for (Interest **link = &interests; *link != NULL; link = &(*link)->next) {
        Interest *interest = *link;
        if (interest->cache == id) {
            *link = interest->next;
            interest_release(interest);
            return;
        }
    }
}

static int interest_add(PyObject *packages, unsigned long long cache)
{
    Interest *interest = PyMem_Calloc(1, sizeof(Interest));
    if (interest == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    interest_forget(cache);
    *interest = (Interest){.next = interests, .users = 1, .cache = cache, .packages = Py_NewRef(packages)};
    interests = interest;
    return 0;
}

static int validate_packages(PyObject *packages)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(packages); i++) {
        PyObject *package = PyTuple_GET_ITEM(packages, i);
        if (!PyUnicode_Check(package) || PyUnicode_AsUTF8(package) == NULL) {
            PyErr_Format(PyExc_TypeError, "set_interest_filter: packages are named by strings, not %.200s",
                         Py_TYPE(package)->tp_name);
            return -1;
        }
    }
    return 0;
}

static int prepare_names(void)
{
    if (module_attribute == NULL) {
        module_attribute = PyUnicode_InternFromString("__module__");
    }
    if (name_attribute == NULL) {
        name_attribute = PyUnicode_InternFromString("__name__");
    }
    return module_attribute == NULL || name_attribute == NULL ? -1 : 0;
}

static PyObject *py_set_interest_filter(PyObject *module, PyObject *args)
{
    PyObject *callback, *packages;
    unsigned long long id;
    if (!PyArg_ParseTuple(args, "OO!:set_interest_filter", &callback, &PyTuple_Type, &packages)) {
        return NULL;
    }
    if (!PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "set_interest_filter: expected a callable, not %.200s", Py_TYPE(callback)->tp_name);
    }
    if (validate_packages(packages) < 0 || prepare_names() < 0 || callback_cache(callback, &id) < 0) {
        return NULL;
    }
    if (interest_add(packages, id) < 0 || reset_caches(NULL, &id) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_always_offer(PyObject *module, PyObject *target)
{
    PyCodeObject *code = code_argument(target);
    CodeState *state = code == NULL ? NULL : code_state_get(code);
    if (state == NULL) {
        return NULL;
    }
    state->always_offered = 1;
    Py_RETURN_NONE;
}

PyMethodDef interest_methods[] = {
    {"set_interest_filter", py_set_interest_filter, METH_VARARGS, NULL},
    {"always_offer", py_always_offer, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
