"""What a model is and what it needs in memory: pure, shared by operator and runtime.

Start here:

- ``config.parse_config(dict)``, ``checkpoint.read_config(folder)`` → ``spec.ModelSpec``
- ``checkpoint.read_directory(folder)``, ``inventory.read_inventory(open_file, index)`` (any source of
  bytes, e.g. HTTP ranges) → ``inventory.Inventory`` of ``header.TensorInfo``
- ``tensors.check_tensors(spec, inventory.by_name)``: does the checkpoint have what the model needs
- ``fit.check(spec, fit.FitRequest(...), available_bytes=..., device_name=...)`` → ``fit.Fit``: verdict,
  sentence, ledger (``Fit.ledger.rows()``) and ``Fit.to_dict()`` as ``/state`` shows it
- ``gpus.find_card("l4")``, ``gpus.card_of_labels(node_labels)``, ``gpus.usable_bytes(card)``
- ``host_memory.available_bytes()``: what this process may still take on the CPU
- ``sizes.parse_size("512MiB")``, ``sizes.format_size(n)``
- ``errors.PlanError``: what any of these raises

Only ``checkpoint`` and ``host_memory`` open files; nothing here needs more than Python's standard library.
"""
