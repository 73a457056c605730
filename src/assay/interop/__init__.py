"""Exchange with other trackers: read TensorBoard, MLflow and wandb, write TensorBoard files."""
