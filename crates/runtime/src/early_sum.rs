//! The sum of the first updates of a step, made while the last ones are awaited.
//!
//! A step sums in a fixed order, so it can go on from there and gives the same bits.

use paceline_core::TaskId;
use paceline_store::ShardNorms;

use crate::part_stepper::{PartStepper, WeightedValues};

/// The first updates of the next step, added up.
#[derive(Debug, Default)]
pub(crate) struct EarlySum {
    updates: Vec<(TaskId, f32)>,
    sum: Vec<f32>,
    norms: Option<ShardNorms>,
}

impl EarlySum {
    /// How many updates are in it.
    pub(crate) fn len(&self) -> usize {
        self.updates.len()
    }

    /// Adds the updates that follow.
    pub(crate) fn extend(&mut self, stepper: &PartStepper, next: &[(TaskId, WeightedValues<'_>)]) {
        let values: Vec<WeightedValues<'_>> = next.iter().map(|&(_, values)| values).collect();
        let Some((first, _)) = values.first() else { return };
        if self.updates.is_empty() {
            self.sum.resize(first.len(), 0.0);
            self.norms = Some(stepper.add_up(&values, &mut self.sum, false));
        } else {
            let norms = stepper.add_up(&values, &mut self.sum, true);
            self.norms = self.norms.take().map(|before| before.continued(&norms));
        }
        self.updates.extend(next.iter().map(|&(task, (_, weight))| (task, weight)));
    }

    /// The sum, if just these updates begin with those that are in it and do not end there.
    pub(crate) fn of(&self, updates: impl ExactSizeIterator<Item = (TaskId, f32)>) -> Option<&[f32]> {
        let is_shorter = (1..updates.len()).contains(&self.len());
        (is_shorter && self.updates.iter().copied().eq(updates.take(self.len()))).then_some(&self.sum)
    }

    /// The norms of a step that went on from the sum.
    pub(crate) fn complete(&self, rest: &ShardNorms) -> ShardNorms {
        self.norms.as_ref().map_or_else(|| rest.clone(), |norms| norms.continued(rest))
    }

    /// Forgets the updates.
    pub(crate) fn clear(&mut self) {
        self.updates.clear();
        self.norms = None;
    }
}
