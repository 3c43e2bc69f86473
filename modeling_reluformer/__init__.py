"""The models, their attention, and what the package adds to models of others; public names: `import reluformer`."""
