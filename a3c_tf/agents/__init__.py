"""The algorithms: what a worker learns, and how it acts."""
