"""Upstreams: requests relayed to other servers, as another implementation of the fleet."""
