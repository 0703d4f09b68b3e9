"""Frameworks on top of torch, as their users start them."""
