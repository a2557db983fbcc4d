"""The engine loop and the step: build, plan, run, commit tokens, swap strategies."""
