/* Whether a dict is unchanged since it was tagged.
 *
 * CPython 3.11 numbers every change of any dict with a version that is never used twice, so that a dict's address and
 * version together name its contents. From 3.12 on, versions are deprecated, and a dict watcher (PEP 699's way out)
 * marks the tag of a watched dict as stale when it changes or dies.
 */

#include "program.h"

#if PY_VERSION_HEX < 0x030C0000

struct DictTag {
    PyObject *dict; /* borrowed, compared before anything is read through it */
    uint64_t version;
};

int dict_tags_setup(void)
{
    return 0;
}

DictTag *dict_tag(PyObject *dict)
{
    DictTag *tag = PyMem_Malloc(sizeof *tag);
    if (tag != NULL) {
        tag->dict = dict;
        tag->version = ((PyDictObject *)dict)->ma_version_tag;
    }
    return tag;
}

/* `dict` is alive, or was proved to be by the tags of what holds it. */
int dict_unchanged(const DictTag *tag, PyObject *dict)
{
    return tag->dict == dict && tag->version == ((PyDictObject *)dict)->ma_version_tag;
}

void dict_tag_release(DictTag *tag)
{
    PyMem_Free(tag);
}

#else

struct DictTag {
    PyObject *dict;  /* borrowed, compared only */
    DictTag *next;   /* in its bucket */
    Py_ssize_t uses; /* by proofs */
    int stale;       /* changed or gone; then it is in no bucket */
};

#define BUCKETS 4096

static DictTag *buckets[BUCKETS];
static int watcher = -1;

static DictTag **bucket_of(PyObject *dict)
{
    return buckets + (((uintptr_t)dict >> 4) % BUCKETS);
}

static DictTag **find(PyObject *dict)
{
    DictTag **link = bucket_of(dict);
    while (*link != NULL && (*link)->dict != dict) {
        link = &(*link)->next;
    }
    return link;
}

static int changed(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    DictTag **link = find(dict);
    if (*link != NULL) {
        DictTag *tag = *link;
        *link = tag->next;
        tag->stale = 1;
    }
    return 0;
}

int dict_tags_setup(void)
{
    if (watcher < 0) {
        watcher = PyDict_AddWatcher(changed);
        if (watcher < 0) {
            PyErr_Clear(); /* all eight watchers are taken: nothing is ever proved unchanged */
        }
    }
    return 0;
}

DictTag *dict_tag(PyObject *dict)
{
    if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return NULL;
    }
    DictTag **link = find(dict);
    if (*link != NULL) {
        (*link)->uses++;
        return *link;
    }
    DictTag *tag = PyMem_Calloc(1, sizeof *tag);
    if (tag != NULL) {
        tag->dict = dict;
        tag->uses = 1;
        *link = tag;
    }
    return tag;
}

int dict_unchanged(const DictTag *tag, PyObject *dict)
{
    return !tag->stale && tag->dict == dict;
}

void dict_tag_release(DictTag *tag)
{
    if (tag == NULL || --tag->uses > 0) {
        return;
    }
    if (!tag->stale) {
        DictTag **link = find(tag->dict);
        *link = tag->next;
        PyDict_Unwatch(watcher, tag->dict);
    }
    PyMem_Free(tag);
}

#endif
