"""What happened: the facts that launcher and harness tell each other."""
