"""ATen graphs: facts about their nodes, tidying, and their invariants."""
