"""The kinds of guards: what each compares, how its expectation is frozen, its Python text and its explanation."""
