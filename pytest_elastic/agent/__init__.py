"""The agent: one per node, it joins rounds and supervises the node's workers."""
