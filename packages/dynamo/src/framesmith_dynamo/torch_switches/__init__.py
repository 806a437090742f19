"""Settings of torch.compile that a program has made through torch's API, read where torch stores them.

Note [Switches]: `torch.compiler.disable`, `set_stance`, `torch._dynamo.config` and their like belong to a compiler that
Framesmith replaces and never imports. A program that uses one of them imports it; what is not in `sys.modules` was not
used. `torch_names` lists the names that are read, `decorators` reads the attributes that torch's decorators set on
functions, `stances` interprets `set_stance`, `settings` the configuration, and `resets` hooks `torch.compiler.reset`.
The table for users, with a test for each row, is `docs/torch-switches.md`.
"""
