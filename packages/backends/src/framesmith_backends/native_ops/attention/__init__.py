"""Attention on the CPU: scores, softmax and P·V matmul, with nothing but the results in memory.

Two things use it: the operator in the place of ATen's, of float32, and the fused attention of runs (`fused.py`).

Note [Across queries]: the lanes of a vector are queries, and the rows of a register tile keys, or elements of values.
Only the queries of a block are transposed, once: an element of a key, or of a value, is read where it is and meets all
lanes, for any strides and head size. Maxima and sums of rows are taken lane by lane.

Note [Few queries]: where they would leave most lanes idle, lanes are the elements of a head, and then keys.

Keys are taken a block at a time, with the largest score so far and the sum of probabilities beside it (online softmax).
Where a later block has a larger one, earlier sums are multiplied by a `factor`.
"""
