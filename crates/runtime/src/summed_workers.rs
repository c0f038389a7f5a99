//! Foresees whose updates the next step sums.

/// Whose updates the latest steps summed, and with which weights. If they were the same twice, the next step is expected to
/// sum updates of the same workers.
#[derive(Debug)]
pub struct SummedWorkers<K> {
    attempted: Vec<(K, f32)>,
    accepted: Vec<(K, f32)>,
    is_steady: bool,
}

impl<K> Default for SummedWorkers<K> {
    fn default() -> Self {
        SummedWorkers { attempted: Vec::new(), accepted: Vec::new(), is_steady: false }
    }
}

impl<K: PartialEq> SummedWorkers<K> {
    /// A step was attempted. `members` are in the order of the sum; there are none if such a sum can't be foreseen.
    pub fn attempt(&mut self, members: Vec<(K, f32)>) {
        self.attempted = members;
    }

    /// The last attempt counts.
    pub fn accept(&mut self) {
        self.is_steady = !self.attempted.is_empty() && self.attempted == self.accepted;
        self.accepted = std::mem::take(&mut self.attempted);
    }

    /// Whose updates the next step sums, in their order, if that can be foreseen.
    pub fn expected(&self) -> Option<&[(K, f32)]> {
        self.is_steady.then_some(&self.accepted)
    }
}
