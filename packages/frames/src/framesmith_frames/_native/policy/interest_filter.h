/* The interest filter: whether a call reaches anything of the packages that a callback is interested in. */
#ifndef FRAMESMITH_INTEREST_FILTER_H
#define FRAMESMITH_INTEREST_FILTER_H

#include "data/code_state.h"
#include "data/records.h"

/* OFFERED: to the callback, if no entry applies. The others run eagerly: EAGER_WATCHED with the hook on in the functions it
 * calls, EAGER_UNWATCHED with the hook off in them, EAGER_LEAF without calling any. */
typedef enum { OFFERED, EAGER_LEAF, EAGER_WATCHED, EAGER_UNWATCHED } Filtering;

Filtering filter_call(Cache *cache, const Call *call); /* never fails */
int interest_filter_init(void);

#endif
