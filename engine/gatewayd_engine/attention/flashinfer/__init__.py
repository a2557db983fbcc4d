"""FlashInfer attention backend: wrappers, ragged prefill, cascade for shared prefixes."""
