"""Choice and self-test of the persistent decode kernel."""
