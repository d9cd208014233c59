"""How workers are started, watched and ended."""
