"""Nineteen research systems in one library, each usable on its own, all compared under one protocol."""

__version__ = "0.1.0"
