"""One decoder for all the architectures served: what it is (spec), its weights, its forward."""
