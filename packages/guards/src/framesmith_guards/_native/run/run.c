#include "run/run.h"

#include "facts/state.h"
#include "run/blocks.h"
#include "run/instructions.h"
#include "tensors/tensors.h"
#include "tensors/torch_modes.h"

static int run_block(Program *program, const Instruction *i, PyObject **registers)
{
    Block *block = program->blocks + i->n;
    if (program->no_torch_function == NULL || !tensor_touched_by(i, registers)) {
        return block_holds(program, block, registers);
    }
    PyObject *manager = enter_no_torch_function(program->no_torch_function);
    return manager == NULL ? -1 : leave_no_torch_function(manager, block_holds(program, block, registers));
}

static int torch_state_holds(Program *program)
{
    return program->has_state ? state_holds(&program->state, modes_active(program->state.inactive)) : 1;
}

int program_run(Program *program, PyObject *const *args, Py_ssize_t nargs, PyObject *function, PyObject **registers)
{
    if (program->dead) {
        return 0;
    }
    program->cursor.dict = NULL;
    int status = torch_state_holds(program);
    for (Py_ssize_t k = 0; status == 1 && k < program->count; k++) {
        const Instruction *i = program->instructions + k;
        status = i->op == OP_RUN_BLOCK ? run_block(program, i, registers)
                                       : run_instruction(program, i, args, nargs, function, registers);
    }
    return program->dead ? 0 : status;
}
