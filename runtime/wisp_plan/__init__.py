"""Dimensions of a model and its needs in memory: pure, shared by operator and runtime.

Start here:

- ``families.config.parse_config(dict)``, ``checkpoint.directory.read_config(folder)`` → ``ModelSpec``
- ``checkpoint.directory.read_directory(folder)``, ``checkpoint.index.read_tensor_index(open_file, index)``
  (any source of bytes, e.g. HTTP ranges) → ``TensorIndex`` of ``TensorInfo``
- ``weights.declaration.declare(spec)`` → every ``spec.weight.WeightSpec`` of the model;
  ``weights.tensors.check_tensors(spec, tensors.by_name)``: does the checkpoint have them
- ``fit.verdict.check(spec, FitRequest(...), available_bytes=..., device_name=...)`` → ``Fit``: verdict,
  sentence, ledger (``Fit.ledger.rows()``) and ``Fit.to_dict()`` as ``/state`` shows it
- ``hardware.gpus.find_card("l4")``, ``card_of_labels(node_labels)``, ``usable_bytes(card)``
- ``hardware.host.available_bytes()``: memory that this process may still take on the CPU
- ``units.parse_size("512MiB")``, ``units.format_size(n)``
- ``errors.PlanError``: base of everything that these raise

Only ``checkpoint.directory`` and ``hardware.host`` open files; nothing here needs more than Python's standard
library.
"""
