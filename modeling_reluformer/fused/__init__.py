"""`relu_attention` and what computes it: on a CPU the compiled loop, on CUDA the Triton kernels, elsewhere blocks in
PyTorch."""
