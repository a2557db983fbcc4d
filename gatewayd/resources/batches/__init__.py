"""Batches: files of requests, run in the background, each line once even after crashes."""
