#include "tensors/torch_shim.h"

TorchShim shim;

/* Torch's own method, if it was found and agrees; else the attribute, which may run a torch-function mode. */
int requires_grad_of(PyObject *tensor)
{
    if (shim.grad_method != NULL) {
        return shim.grad_method(impl_of(tensor));
    }
    PyObject *answer = shim.requires_grad(tensor, shim.requires_grad_closure);
    if (answer == NULL) {
        return -1;
    }
    int value = answer == Py_True;
    Py_DECREF(answer);
    return value;
}
