"""Bouts: what is measured. A bout starts its systems, lets each have its turn in every round, and ends them."""
