"""The registry of models, the programs that suites share, and the selection of rows."""
