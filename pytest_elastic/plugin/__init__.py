"""The pytest plugin: loaded by every pytest run, so nothing here imports what costs."""
