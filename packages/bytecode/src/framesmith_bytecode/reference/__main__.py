"""`python -m framesmith_bytecode.reference` prints the page."""

from framesmith_bytecode.reference.page import instructions_page

print(instructions_page(), end="")
