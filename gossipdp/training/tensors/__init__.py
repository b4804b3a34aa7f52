"""The model as one flat vector: schema, layout, streams, and the state carried beside it."""
