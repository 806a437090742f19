"""The compiled parts joined into one function with eager's meaning."""
