"""Dictionaries of attributes (`__dict__`, mapping proxies), and their owners."""
