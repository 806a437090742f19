"""Classes and their instances, exceptions included: attribute look-up, construction, copying."""
