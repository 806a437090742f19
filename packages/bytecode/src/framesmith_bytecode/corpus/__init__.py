"""The round trip of whole source trees: what is compared, and the command that counts."""
