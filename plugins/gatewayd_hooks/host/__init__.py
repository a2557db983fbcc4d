"""What processes with plugins do with them: find, load, watch and time. No plugin imports it."""
