"""The version of the package and of the library that it carries."""

__version__ = "0.1.0"
