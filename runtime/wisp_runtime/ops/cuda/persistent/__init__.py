"""The persistent decode kernel."""
