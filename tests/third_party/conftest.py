"""Projects of strangers: not tests of this one; ``tests/packaging`` installs and runs them."""

collect_ignore_glob = ["*"]
