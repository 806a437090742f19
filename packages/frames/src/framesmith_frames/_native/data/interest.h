/* Registered interest filters: for each cache id, the packages that its callback is interested in. */
#ifndef FRAMESMITH_INTEREST_H
#define FRAMESMITH_INTEREST_H

#include "compat.h"

enum { TYPES_REMEMBERED = 512 }; /* a power of two */

typedef enum { UNKNOWN, LEAF, OPEN, CLASS, MODULE, FUNCTION, BUILTIN, LAZY_IMPORT, INTERESTING } Kind;

typedef struct {
    PyTypeObject *type; /* borrowed: compared together with the version, which no other type has had or will have */
    unsigned int version;
    Kind kind;
} KnownType;

typedef struct Interest {
    struct Interest *next;
    Py_ssize_t users;                  /* the registry, and caches */
    unsigned long long cache_id;       /* id of the callback's caches */
    PyObject *packages;                /* tuple of str */
    KnownType types[TYPES_REMEMBERED]; /* kinds of types, by hash of the type's address */
} Interest;

int interest_add(PyObject *packages, unsigned long long cache_id); /* replaces the one of this cache id */
Interest *interest_of_cache(unsigned long long id); /* strong; NULL: every call is offered to the callback; never fails */
void interest_release(Interest *interest);          /* or NULL */
void interest_forget(unsigned long long id);

#endif
