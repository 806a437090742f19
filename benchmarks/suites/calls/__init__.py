"""Suites of calls: guards, dispatch, first calls."""
