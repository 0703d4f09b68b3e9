"""How nodes agree on rounds: who takes part, in which order, under which store, and how it ends."""
