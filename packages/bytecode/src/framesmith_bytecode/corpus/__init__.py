"""Round trips of whole source trees: the comparison, and the command that counts failures."""
