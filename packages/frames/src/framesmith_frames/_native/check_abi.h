/* The capsule through which framesmith_frames calls a native guard program (layout version 1).
 *
 * A provider copies the struct below; it needs no header of this package.
 *
 * A checker is any Python object. If it has an attribute `__framesmith_check__` that is a PyCapsule named
 * "framesmith.check.v1", the capsule's pointer is a `framesmith_check_v1`, which must outlive the checker object.
 * Otherwise the checker is called as `checker(args: tuple, function) -> bool`.
 *
 * The check of an Entry made with `inputs=True` also finds the values that its code needs. A checker with the capsule returns
 * them through `extracted`; one without has a method `extract(args: tuple, function)` that returns the tuple, or None where
 * the entry does not apply, and is itself not called.
 */
#ifndef FRAMESMITH_CHECK_ABI_H
#define FRAMESMITH_CHECK_ABI_H

#include <Python.h>

#define FRAMESMITH_CHECK_ATTRIBUTE "__framesmith_check__"
#define FRAMESMITH_CHECK_CAPSULE "framesmith.check.v1"
#define FRAMESMITH_CHECK_VERSION 1

typedef struct {
    int version; /* FRAMESMITH_CHECK_VERSION; anything else is refused when the Entry is made */

    /* 1: the entry applies; 0: it does not; -1: an exception is set.
     *
     * self       the checker object (borrowed)
     * args       borrowed references, one for each argument of the code object in co_varnames order:
     *            positional, keyword-only, the *args tuple, the **kwargs dict; never NULL
     * nargs      their number
     * function   the function being called (borrowed): its globals, closure cells and defaults hang on it
     * extracted  NULL: the answer is all that is wanted, and nothing is written through it. Else it points to NULL, and
     *            with the answer 1 a new reference to an exact tuple of the inputs is stored there; what a tuple holds
     *            is between the checker and the entry's code. With another answer the NULL is left there.
     *
     * Called with the GIL held and the frame hook off on this thread. It may run Python code.
     */
    int (*check)(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **extracted);
} framesmith_check_v1;

#endif
