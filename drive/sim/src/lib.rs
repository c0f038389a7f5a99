//! Drives: schemes on a virtual clock with real gradients.
