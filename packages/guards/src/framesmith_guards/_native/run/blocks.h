/* Blocks: all their instructions, or the proof that nothing they read changed. */
#ifndef FRAMESMITH_GUARDS_BLOCKS_H
#define FRAMESMITH_GUARDS_BLOCKS_H

#include "run/program.h"

/* 1: holds; 0: misses; -1: an exception is set. */
int block_holds(Program *program, Block *block, PyObject **registers);
void block_forget(Block *block);

#endif
