//! A step that is made while its updates arrive.
//!
//! Where step after step sums updates of the same workers, the next one probably does so too. Its pieces are then stepped as
//! soon as all updates have arrived there, and little is left to do when the coordinator asks for it. If it asks for
//! another step, only work is lost: the next version is written beside the present one.

use std::collections::HashMap;
use std::ops::Range;

use paceline_core::TaskId;
use paceline_protocol::ShardSum;
use paceline_runtime::StepPlan;
use paceline_store::ShardNorms;

/// The session of a worker, and the weight of its update in the sum.
type Member = (u64, f32);

pub(super) struct EarlyStep {
    pub(super) plan: StepPlan,
    members: Vec<Member>,
    positions: HashMap<u64, usize>,
    /// The updates that are summed, as far as they have begun to arrive.
    tasks: Vec<Option<TaskId>>,
    /// In every piece: how many of them have arrived.
    arrived: Vec<usize>,
    /// The norms of the pieces that are stepped, which are the first ones.
    pub(super) norms: Vec<ShardNorms>,
}

impl EarlyStep {
    /// A step by this plan, over this many pieces, that sums the updates of these workers.
    pub(super) fn new(plan: StepPlan, members: &[Member], pieces: usize) -> Self {
        EarlyStep {
            plan,
            members: members.to_vec(),
            positions: members.iter().enumerate().map(|(position, &(session, _))| (session, position)).collect(),
            tasks: vec![None; members.len()],
            arrived: vec![0; pieces],
            norms: Vec::new(),
        }
    }

    /// An update begins to arrive.
    pub(super) fn begin(&mut self, session: u64, task: TaskId) {
        if let Some(&position) = self.positions.get(&session) {
            self.tasks[position].get_or_insert(task);
        }
    }

    /// An update has arrived in a piece.
    pub(super) fn arrive(&mut self, session: u64, task: TaskId, piece: usize) {
        if self.positions.get(&session).is_some_and(|&position| self.tasks[position] == Some(task)) {
            self.arrived[piece] += 1;
        }
    }

    /// The pieces that can be stepped now.
    pub(super) fn ready(&self) -> Range<usize> {
        let first = self.norms.len();
        let ready = self.arrived[first..].iter().take_while(|&&arrived| arrived == self.members.len()).count();
        first..first + ready
    }

    /// The updates that have begun to arrive, with their weights, in the order of the sum.
    pub(super) fn updates(&self) -> impl Iterator<Item = (TaskId, f32)> {
        self.tasks.iter().zip(&self.members).filter_map(|(task, &(_, weight))| Some(((*task)?, weight)))
    }

    /// Whether it sums just these updates.
    pub(super) fn is_of(&self, sum: &ShardSum) -> bool {
        let asked = sum.updates.iter().map(|update| (update.task, update.weight));
        sum.lambda.is_none() && sum.updates.len() == self.members.len() && asked.eq(self.updates())
    }
}
