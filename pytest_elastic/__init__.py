"""An elastic PyTorch launcher, a fault-injection harness and a pytest plugin."""

__all__ = ["__version__"]

__version__ = "0.1.0"
