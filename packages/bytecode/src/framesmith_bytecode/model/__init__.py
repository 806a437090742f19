"""The canonical form: the operations, and the editable record of a code object."""
