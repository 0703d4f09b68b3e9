"""Every implementation keeps its interface; parity with the installed torch."""
