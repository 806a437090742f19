"""Classes and their instances, exceptions among them: attribute look-up, construction, copying."""
