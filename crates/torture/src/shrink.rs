//! Shrinking: finding a smaller fault schedule that still fails.

use std::mem::discriminant;

use paceline_core::{Scheme, Setup};

use crate::fault_schedule::FaultSchedule;
use crate::fault_simulation::{TortureFailure, torture};

/// Removes faults and workers from a failing schedule as long as it still fails in the same way. Returns the smallest
/// schedule found and its failure.
pub fn shrink(
    schedule: &FaultSchedule,
    failure: TortureFailure,
    build: &dyn Fn(&Setup) -> Box<dyn Scheme>,
) -> (FaultSchedule, TortureFailure) {
    let mut smallest = (schedule.clone(), failure);
    // Remove large parts first, then smaller ones, until no fault can be removed.
    let mut part = smallest.0.faults.len();
    while part > 0 {
        let mut from = 0;
        let mut removed = false;
        while from < smallest.0.faults.len() {
            let mut candidate = smallest.0.clone();
            candidate.faults.drain(from..(from + part).min(candidate.faults.len()));
            match same_failure(&candidate, &smallest.1, build) {
                Some(failure) => {
                    smallest = (candidate, failure);
                    removed = true;
                }
                None => from += part,
            }
        }
        part = if removed && part == 1 { 1 } else { part / 2 };
    }
    while smallest.0.workers > 1 {
        let candidate = FaultSchedule { workers: smallest.0.workers - 1, ..smallest.0.clone() };
        let Some(failure) = same_failure(&candidate, &smallest.1, build) else { break };
        smallest = (candidate, failure);
    }
    smallest
}

fn same_failure(
    schedule: &FaultSchedule,
    failure: &TortureFailure,
    build: &dyn Fn(&Setup) -> Box<dyn Scheme>,
) -> Option<TortureFailure> {
    torture(schedule, build).err().filter(|found| match (found, failure) {
        (TortureFailure::Law(found), TortureFailure::Law(known)) => {
            discriminant(&found.law) == discriminant(&known.law)
        }
        _ => discriminant(found) == discriminant(failure),
    })
}
