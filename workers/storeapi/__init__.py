"""The store's API, from both sides: what it offers, and a pretend store that offers it."""
