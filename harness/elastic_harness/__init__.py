"""A multi-node cluster inside one machine, with faults, a history and a verdict."""
