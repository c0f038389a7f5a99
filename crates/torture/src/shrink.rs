//! Finding the shortest history that still fails.

use std::mem::discriminant;

use paceline_core::{Scheme, Setup};

use crate::history::History;
use crate::world::{Failure, torture};

/// Takes troubles and workers out of a history that fails, as long as it still fails in the same way. Returns what is
/// left and how that fails.
pub fn shorten(history: &History, failure: Failure, build: &dyn Fn(&Setup) -> Box<dyn Scheme>) -> (History, Failure) {
    let mut shortest = (history.clone(), failure);
    // Large parts first, then ever smaller ones, until nothing can be left out.
    let mut part = shortest.0.troubles.len();
    while part > 0 {
        let mut from = 0;
        let mut shortened = false;
        while from < shortest.0.troubles.len() {
            let mut candidate = shortest.0.clone();
            candidate.troubles.drain(from..(from + part).min(candidate.troubles.len()));
            match fails_alike(&candidate, &shortest.1, build) {
                Some(failure) => {
                    shortest = (candidate, failure);
                    shortened = true;
                }
                None => from += part,
            }
        }
        part = if shortened && part == 1 { 1 } else { part / 2 };
    }
    while shortest.0.workers > 1 {
        let candidate = History { workers: shortest.0.workers - 1, ..shortest.0.clone() };
        let Some(failure) = fails_alike(&candidate, &shortest.1, build) else { break };
        shortest = (candidate, failure);
    }
    shortest
}

fn fails_alike(history: &History, failure: &Failure, build: &dyn Fn(&Setup) -> Box<dyn Scheme>) -> Option<Failure> {
    torture(history, build).err().filter(|found| match (found, failure) {
        (Failure::Law(found), Failure::Law(known)) => discriminant(&found.law) == discriminant(&known.law),
        _ => discriminant(found) == discriminant(failure),
    })
}
