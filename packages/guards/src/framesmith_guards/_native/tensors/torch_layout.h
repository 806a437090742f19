/* Setting up how tensors are read; functions of the module. */
#ifndef FRAMESMITH_GUARDS_TORCH_LAYOUT_H
#define FRAMESMITH_GUARDS_TORCH_LAYOUT_H

#include "instruction.h"

int tensors_ready(void);
PyObject *tensors_setup(PyObject *module, PyObject *args);
PyObject *tensors_probe(PyObject *module, PyObject *tensor);
PyObject *tensors_find_grad(PyObject *module, PyObject *tensors);
PyObject *tensors_requires_grad(PyObject *module, PyObject *tensor);
PyObject *tensors_use_bytes(PyObject *module, PyObject *usable);
PyObject *tensors_device_type(PyObject *module, PyObject *name);

#endif
