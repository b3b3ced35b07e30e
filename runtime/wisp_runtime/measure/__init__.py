"""What ``wisp-runtime bench`` and ``wisp-runtime profile`` measure, of the engine that serves."""
