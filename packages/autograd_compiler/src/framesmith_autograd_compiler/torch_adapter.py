"""Names of torch that may move between releases, as used here: see Note [Needs] in `framesmith_guards.needs`."""

from __future__ import annotations

from typing import Final

from framesmith_aten.torch_adapter import unstable as of_aten
from framesmith_guards.needs import Needs, need
from framesmith_guards.torch_adapter import unstable as of_guards

_CAPTURE: Final = "backward passes are not captured"

unstable: Final = Needs(
    "autograd_compiler",
    (
        # Belongs to torch._C, not to torch._dynamo.
        need("torch._C._dynamo.autograd_compiler", _CAPTURE, name="engine", members=("set_autograd_compiler",)),
        need("torch._foreach_add_", "gradients are added to existing ones one by one", instead=None),
    ),
    of_aten,
    of_guards,
)
