"""Train one model on many unequal, unreliable workers."""

from importlib.metadata import version

__version__ = version("paceline")
__all__ = ["__version__"]
