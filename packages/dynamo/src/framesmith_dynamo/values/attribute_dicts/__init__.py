"""Dictionaries of attributes (`__dict__`, mapping proxies), and the objects they belong to."""
