"""Reports: demand for the operator, ``/state`` and ``/v1/models`` for clients."""
