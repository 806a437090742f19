/* The registry of interest filters: a linked list, for there is one filter per compiler at most. */

#include "data/interest.h"

static Interest *interests = NULL;

Interest *interest_of_cache(unsigned long long id)
{
    Interest *interest = interests;
    while (interest != NULL && interest->cache_id != id) {
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
        if (interest->cache_id == id) {
            *link = interest->next;
            interest_release(interest);
            return;
        }
    }
}

int interest_add(PyObject *packages, unsigned long long cache_id)
{
    Interest *interest = PyMem_Calloc(1, sizeof(Interest));
    if (interest == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    interest_forget(cache_id);
    *interest = (Interest){.next = interests, .users = 1, .cache_id = cache_id, .packages = Py_NewRef(packages)};
    interests = interest;
    return 0;
}
