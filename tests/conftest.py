"""What all tests need: interrupts that reach the processes they start."""

import signal

# Whoever runs the tests in the background may ignore interrupts, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
