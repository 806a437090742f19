/* Whether a dict is unchanged since it was tagged.
 *
 * CPython 3.11 numbers every change of any dict with a version that is never used twice, so that a dict's address and
 * version together name its contents. From 3.12 on, versions are deprecated, and a dict watcher (PEP 699's way out)
 * marks the tag of a watched dict as stale when it changes or dies.
 */

#include "facts/dict_tags.h"

#include "compat.h"

#if DICTS_HAVE_VERSIONS

int dict_tags_setup(void)
{
    return 0;
}

int dict_tag(PyObject *dict, DictTag *tag)
{
    tag->version = ((PyDictObject *)dict)->ma_version_tag;
    return 1;
}

/* `dict` is alive, or was proved to be by the tags of what holds it. */
int dict_unchanged(DictTag tag, PyObject *dict)
{
    return tag.version == ((PyDictObject *)dict)->ma_version_tag;
}

void dict_tag_release(DictTag tag)
{
}

#else

struct WatchedDict {
    PyObject *dict;  /* borrowed, compared only */
    WatchedDict *next; /* in its bucket */
    Py_ssize_t uses; /* by proofs */
    int stale;       /* changed or gone; then it is in no bucket */
};

#define BUCKETS 4096

static WatchedDict *buckets[BUCKETS];
static int watcher = -1;

static WatchedDict **bucket_of(PyObject *dict)
{
    return buckets + (((uintptr_t)dict >> 4) % BUCKETS);
}

static WatchedDict **find(PyObject *dict)
{
    WatchedDict **link = bucket_of(dict);
    while (*link != NULL && (*link)->dict != dict) {
        link = &(*link)->next;
    }
    return link;
}

static int changed(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    WatchedDict **link = find(dict);
    if (*link != NULL) {
        WatchedDict *watched = *link;
        *link = watched->next;
        watched->stale = 1;
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

int dict_tag(PyObject *dict, DictTag *tag)
{
    if (watcher < 0 || PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return 0;
    }
    WatchedDict **link = find(dict);
    if (*link == NULL) {
        *link = PyMem_Calloc(1, sizeof **link);
        if (*link == NULL) {
            return 0;
        }
        (*link)->dict = dict;
    }
    (*link)->uses++;
    tag->watched = *link;
    return 1;
}

int dict_unchanged(DictTag tag, PyObject *dict)
{
    return !tag.watched->stale && tag.watched->dict == dict;
}

void dict_tag_release(DictTag tag)
{
    WatchedDict *watched = tag.watched;
    if (--watched->uses > 0) {
        return;
    }
    if (!watched->stale) {
        WatchedDict **link = find(watched->dict);
        *link = watched->next;
        PyDict_Unwatch(watcher, watched->dict);
    }
    PyMem_Free(watched);
}

#endif
