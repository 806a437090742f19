/* The extension module framesmith_frames._hook. */

#include "api/callback_api.h"
#include "api/code_api.h"
#include "api/compiled_function.h"
#include "api/wrapper.h"
#include "data/code_state.h"
#include "data/records.h"
#include "hook/hook.h"
#include "hook/layout.h"
#include "policy/interest_filter.h"

static PyTypeObject *const types[] = {&Entry_Type, &Skip_Type, &RunOnce_Type, &FrameInfo_Type,
                                     &CompiledFunction_Type, &WithoutHook_Type};

static int module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "framesmith_frames works in the main interpreter only");
        return -1;
    }
    if (layout_init() < 0) {
        return -1;
    }
    compiled_functions_init();
    if (hook_init() < 0 || code_state_init() < 0 || interest_filter_init() < 0 || PyModule_AddFunctions(module, code_methods) < 0 ||
        PyModule_AddFunctions(module, callback_methods) < 0) {
        return -1;
    }
    if (PyModule_AddObjectRef(module, "specialised_init_bypasses_hook",
                              SPECIALISED_INIT_BYPASSES_HOOK ? Py_True : Py_False) < 0) {
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    SUBINTERPRETERS_ARE_REFUSED
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "framesmith_frames._hook",
    .m_doc = "The frame hook, its per-code cache and native dispatch, in C.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__hook(void) { return PyModuleDef_Init(&definition); }
