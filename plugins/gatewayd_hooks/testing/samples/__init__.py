"""Samples for tests of strategies: texts, grammars, tokens and states."""
