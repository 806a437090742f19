"""Functions of the same meaning that torch calls are traced through."""
