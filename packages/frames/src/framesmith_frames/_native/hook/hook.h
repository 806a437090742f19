/* The PEP 523 frame evaluator of this package. */
#ifndef FRAMESMITH_HOOK_H
#define FRAMESMITH_HOOK_H

void hook_init(void);

#endif
