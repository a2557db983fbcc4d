"""Samples for tests of strategies: texts, grammars, tokens, states, responses and random cases."""
