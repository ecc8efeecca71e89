"""Comparisons: what is measured. Each starts its systems, measures them in turns, and stops them."""
