"""Widgets and dialogs of the console."""
