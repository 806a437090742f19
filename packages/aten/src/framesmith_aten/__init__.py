"""ATen: what torch's operators do, and where their tensors' elements lie."""

from framesmith_aten import failures, layouts, operators
from framesmith_aten.__about__ import __version__

__all__ = ["__version__", "failures", "layouts", "operators"]
