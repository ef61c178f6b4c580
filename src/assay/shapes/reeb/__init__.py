"""Multiscale Reeb graphs over diffusion geometry: points and components, lenses, slabs, the tower, and what is kept
of it.
"""
