"""What other trackers left on this disk, read without them: TensorBoard, MLflow, wandb."""
