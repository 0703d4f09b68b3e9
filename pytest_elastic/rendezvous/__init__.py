"""How nodes agree on rounds: which take part, in which order, with which store, and the end."""
