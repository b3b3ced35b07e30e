"""Routing: the models, their pods and request queues, the load balancer."""
