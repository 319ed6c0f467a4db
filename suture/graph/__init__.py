"""From a named dataset or a PyG graph to cut, validated client batches."""
