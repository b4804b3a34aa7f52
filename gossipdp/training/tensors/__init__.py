"""The model as vectors: schema, layout, streams, and what is carried beside the parameters."""
