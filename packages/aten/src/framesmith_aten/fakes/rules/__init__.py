"""Rules for single operators on fakes: results, memory reads, gradients and refusals that torch's rules lack."""
