"""Server of an exported model: Open Inference Protocol v2, and a plain predict."""

TOKEN_VARIABLE = "ASSAY_SERVE_TOKEN"
