"""Conformance tests of the kinds about targets of requests: residency, routes, upstreams."""
