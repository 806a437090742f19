/* Ids of caches: each callback owns one. */
#ifndef FRAMESMITH_OWNER_H
#define FRAMESMITH_OWNER_H

#include "compat.h"

int callback_cache(PyObject *callback, unsigned long long *id); /* -1 with an exception */
unsigned long long new_cache_id(void);

#endif
