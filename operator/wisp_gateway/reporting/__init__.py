"""Reports: demand for the operator; models, the page's feed, wake and stop for clients; metrics."""
