/* Functions that torch exports and that say what is active in a thread: by the names that every torch has had so far,
 * but that none promises. programs/native/modes.py compares each bit with torch's answer in Python, off and on, before
 * a program uses it.
 */

#include "tensors/torch_modes.h"

#include "tensors/shapes.h"
#include "tensors/torch_shim.h"
#ifndef _WIN32
#include <dlfcn.h>
#endif

static struct {
    int64_t (*function_modes)(void);
    _Bool (*key_included)(uint16_t);
    const void *const *(*transforms)(void); /* a std::vector */
    const void *const *(*hooks)(void);      /* a std::deque */
    _Bool (*hooks_enabled)(void);
    _Bool (*inference_mode)(void);
} torch;

static uint16_t dispatch_key, tracing_key;
static unsigned readable; /* the bits whose functions were found */

/* It begins with the addresses of its first element and past its last. */
static int is_empty_vector(const void *const *vector)
{
    return vector[0] == vector[1];
}

/* As the GNU library has it: a table of blocks, its size, an iterator to the first element and one past the last. */
static int is_empty_deque(const void *const *deque)
{
    return deque[2] == deque[6];
}

static int is_active(Mode mode)
{
    switch (mode) {
    case MODE_FUNCTION_MODE:
        return torch.function_modes() != 0;
    case MODE_DISPATCH_MODE:
        return torch.key_included(dispatch_key);
    case MODE_TRACING:
        return torch.key_included(tracing_key);
    case MODE_TRANSFORM:
        return !is_empty_vector(torch.transforms());
    case MODE_SAVED_TENSOR_HOOKS:
        return !is_empty_deque(torch.hooks());
    case MODE_NO_SAVED_TENSOR_HOOKS:
        return !torch.hooks_enabled();
    case MODE_INFERENCE_MODE:
        return torch.inference_mode();
    default:
        Py_UNREACHABLE();
    }
}

unsigned modes_active(unsigned wanted)
{
    unsigned active = 0;
    for (unsigned mode = 0; mode < MODE_COUNT; mode++) {
        if (wanted & 1u << mode && is_active((Mode)mode)) {
            active |= 1u << mode;
        }
    }
    return active;
}

/* modes_find(dispatch key of dispatch modes, that of tracing) -> the bits whose functions this torch exports */
PyObject *modes_find(PyObject *module, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "HH:modes_find", &dispatch_key, &tracing_key)) {
        return NULL;
    }
#ifndef _WIN32
    struct {
        const char *name;
        void **slot;
        unsigned bits;
    } wanted[] = {
        {"_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", (void **)&torch.function_modes, 1u << MODE_FUNCTION_MODE},
        {"_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE", (void **)&torch.key_included,
         1u << MODE_DISPATCH_MODE | 1u << MODE_TRACING},
        {"_ZN2at9functorch20getDynamicLayerStackEv", (void **)&torch.transforms, 1u << MODE_TRANSFORM},
        {"_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv", (void **)&torch.hooks, 1u << MODE_SAVED_TENSOR_HOOKS},
        {"_ZN2at23SavedTensorDefaultHooks10is_enabledEv", (void **)&torch.hooks_enabled,
         1u << MODE_NO_SAVED_TENSOR_HOOKS},
        {"_ZN3c1013InferenceMode10is_enabledEv", (void **)&torch.inference_mode, 1u << MODE_INFERENCE_MODE},
    };
    for (size_t k = 0; shim.library != NULL && k < sizeof wanted / sizeof *wanted; k++) {
        *wanted[k].slot = dlsym(shim.library, wanted[k].name);
        readable |= *wanted[k].slot == NULL ? 0 : wanted[k].bits;
    }
#endif
    return PyLong_FromUnsignedLong(readable);
}

/* modes_read() -> the bits found of modes that are active in this thread */
PyObject *modes_read(PyObject *module, PyObject *unused)
{
    return PyLong_FromUnsignedLong(modes_active(readable));
}

PyObject *mode_names(void)
{
    static const char *const names[] = {
#define X(name) #name,
        FOR_EACH_MODE(X)
#undef X
    };
    return numbers_by_name(names, MODE_COUNT);
}
