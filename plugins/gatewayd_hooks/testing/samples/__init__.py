"""What strategies are tried on: texts, grammars, tokens and states."""
