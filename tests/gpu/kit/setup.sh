# Source this in the project's root on a GPU machine: it unpacks the kit once, and sets the paths.
eval "$(PYTHONPATH=$PWD python3 -m tests.gpu.kit.environment)"
