"""Attention of float32: scores, softmax and their matmul with the values, nothing of it in memory but the results.

Note [Across queries]: the lanes of a vector are queries, and the rows of a register tile keys, or elements of values.
Only the queries of a block have to be turned, once: an element of a key, or of a value, is read where it lies and meets
all lanes, whatever the strides and the size of a head. Maxima and sums of rows are taken lane by lane.

Note [Few queries]: where they would leave most lanes idle, lanes are the elements of a head, and then keys.

Keys are taken a block at a time, with the largest score so far, and the sum of the weights beside it. Where a later
block has a larger one, what was summed up is multiplied by a `factor`.
"""
