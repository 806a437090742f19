"""Facts about torch's operators, their fakes and layouts; ATen graphs, and the contract with backends."""

from framesmith_aten import failures, layouts, operators
from framesmith_aten.__about__ import __version__

__all__ = ["__version__", "failures", "layouts", "operators"]
