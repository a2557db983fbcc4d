"""Matrices of few bits, each kind with the product that suits it."""
