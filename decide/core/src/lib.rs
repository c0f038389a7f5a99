//! Decides: synchronization schemes, estimators and planners. No I/O, no clock.
