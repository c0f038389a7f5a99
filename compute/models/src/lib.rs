//! Computes: neural networks on Burn as workloads.
