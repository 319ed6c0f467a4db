"""Runs as other tools show them: TensorBoard, MLflow and Weights & Biases, each behind the same few calls."""
