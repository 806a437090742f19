/* Dictionaries that have not changed: CPython 3.11 numbers their states, later ones call watchers. */
#ifndef FRAMESMITH_GUARDS_DICT_TAGS_H
#define FRAMESMITH_GUARDS_DICT_TAGS_H

#include "instruction.h"

typedef struct WatchedDict WatchedDict;
typedef union {
    uint64_t version;     /* CPython 3.11 */
    WatchedDict *watched; /* from 3.12 on */
} DictTag;
int dict_tag(PyObject *dict, DictTag *tag);
int dict_unchanged(DictTag tag, PyObject *dict);
void dict_tag_release(DictTag tag);
int dict_tags_setup(void);

#endif
