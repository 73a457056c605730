"""Server of an exported model: Open Inference Protocol v2, and a plain predict."""

DEFAULT_PORT = 8000
TOKEN_VARIABLE = "ASSAY_SERVE_TOKEN"
LOCAL = "127.0.0.1"
