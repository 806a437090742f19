/* The PEP 523 frame evaluator of this package. */
#ifndef FRAMESMITH_HOOK_H
#define FRAMESMITH_HOOK_H

int hook_init(void); /* -1 with an exception */

#endif
