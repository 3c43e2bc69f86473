"""A page that translates a text and shows the attention behind it; needs Gradio (`pip install 'reluformer[space]'`)."""
