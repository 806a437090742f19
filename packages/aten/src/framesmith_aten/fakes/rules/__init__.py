"""How fakes run single operators: results, memory reads, gradients and refusals that torch's rules lack."""
