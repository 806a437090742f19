"""What a program has said to torch about compiling: read where torch keeps it, heard here as by torch.compile.

Note [Switches]: `torch.compiler.disable`, `set_stance`, `torch._dynamo.config` and their like belong to a compiler that
Framesmith replaces and never imports. A program that uses one of them imports it, though; so what is not in
`sys.modules` was not said. `places` names what is read of it, `marks` are what its decorators leave on functions,
`stances` what `set_stance` means for calls, `settings` the names of its configuration, `resets` how Framesmith hears of
`torch.compiler.reset`. The table for users, with a test for each row, is `docs/torch-switches.md`.
"""
