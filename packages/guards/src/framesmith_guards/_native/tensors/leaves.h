/* What autograd does at a leaf besides storing a gradient. */
#ifndef FRAMESMITH_GUARDS_LEAVES_H
#define FRAMESMITH_GUARDS_LEAVES_H

#include "instruction.h"

/* Only for tensors that a spec has checked in the same run: a leaf without hooks whose gradients have this dtype?
 * `number` is the shim's number of the dtype.
 */
int is_plain_leaf(PyObject *tensor, PyObject *dtype, Py_ssize_t number);

/* leaves_setup(descriptors, probes) -> which attributes are read without their descriptors
 * `descriptors`: of is_leaf, of the hooks (two), and of the gradients' dtype or None. `probes`: tensors, of which the
 * first has no hooks, and the second has both, and whose gradients have their dtype, or None.
 */
PyObject *leaves_setup(PyObject *module, PyObject *args);

#endif
