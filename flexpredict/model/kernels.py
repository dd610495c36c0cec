"""Whether kernels of our own, written in Triton, may be used."""

try:  # comes with torch's GPU builds
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["allowed", "tl", "triton"]

allowed = triton is not None  # engine.precision takes it back where they turn out not to work
