//! `auto`: the scheme that nobody has to choose. It runs one of the others, and changes it when another one would be faster.
//!
//! It learns the cluster's times from reports, and asks a [planner](crate::PlanRequest) how fast each candidate would be on
//! those. A change is made at a barrier: the scheme in force makes its next commit, which settles every update, and assigns nothing.
//! Tasks of earlier versions are interrupted. Then all workers join the new scheme.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, SchemeSpec, Setting, SettingDefault, Settings, Setup, StepKind};
use crate::cluster_model::ClusterModel;
use crate::{
    Aggregate, CommitRequest, GradientNoise, PlanRequest, Question, Reason, RestoreError, Scheme, SchemePace, TaskId,
    Time, Turn, Update, Work, WorkerId,
};

/// What it begins with, and falls back to when a worker is overdue: no worker holds the others up, and after a round the times
/// are known. With a rate of 1, a local iteration moves the model as far as one of `bsp`, so that one rate suits all candidates.
const FIRST: &str = "anytime:tau=4,rate=1";

/// How many iterations of every worker, on average, are seen after a worker has come or gone before there is a plan. So the first
/// plan follows this many iterations after the first worker has joined, whichever workers did them.
const SOON: u64 = 8;

/// The same between plans at first. Each time that nothing has changed it is doubled …
const INTERVAL: u64 = 16;

/// … up to this.
const LONGEST_INTERVAL: u64 = 128;

/// How many times as fast as the scheme in force another one must be expected to be.
const LEAST_GAIN: f64 = 1.1;

/// The most local iterations in a round where transfers take no time.
const LONG_ROUND: f64 = 8.0;

/// A change that is under way.
#[derive(Clone, Serialize, Deserialize)]
struct SchemeChange {
    to: SchemeSpec,
    reason: Reason,
}

/// What is known and decided, apart from the state of the scheme in force.
#[derive(Serialize, Deserialize)]
struct AutoState {
    present: SchemeSpec,
    change: Option<SchemeChange>,
    members: BTreeSet<WorkerId>,
    model: ClusterModel,
    noise: GradientNoise,
    /// Iterations that were seen of all workers.
    seen: u64,
    /// The next plan is made when this many were seen.
    plan_at: u64,
    interval: u64,
    /// A plan is wanted.
    wants_plan: bool,
    /// Updates since the last commit, and the iterations in them.
    updates: (u64, u64),
    /// Gradients of the newest version that have arrived.
    pending: Vec<TaskId>,
    /// When it looks for overdue workers next, if that is still to come.
    watch_at: Time,
    /// Commits of an earlier scheme that are not confirmed yet.
    earlier_commits: u64,
}

/// The state as it is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedAuto<State> {
    auto: State,
    scheme: String,
}

struct Auto {
    setup: Setup,
    stale: bool,
    state: AutoState,
    scheme: Box<dyn Scheme>,
}

impl Auto {
    /// The schemes that may be in force, with as many workers as there are. The present one is the first.
    fn candidates(&self) -> Vec<SchemeSpec> {
        let live = self.state.members.len();
        let rounds = [2, 3, 4, 6, 8, 16, 32, 64].into_iter().filter(|&tau| f64::from(tau) <= self.longest_round());
        let mut texts: Vec<String> = rounds.map(|tau| format!("anytime:tau={tau},rate=1")).collect();
        texts.extend(["bsp", "lb-bsp:predictor=ema"].map(String::from));
        let quorums: BTreeSet<usize> =
            (1..8).map(|eighths| live * eighths / 8).chain([live.saturating_sub(1)]).collect();
        for k in quorums.into_iter().filter(|k| (1..=self.setup.workers).contains(k)) {
            texts.push(format!("backup:k={k}"));
        }
        texts.push("asp".into());
        let parse = |text: &String| text.parse().expect("the candidates are written as schemes are");
        let allowed = |spec: &SchemeSpec| self.stale || spec.step_kind().is_safe();
        let others = texts.iter().map(parse).filter(|spec| *spec != self.state.present && allowed(spec));
        std::iter::once(self.state.present.clone()).chain(others).collect()
    }

    /// The most local iterations per round that may pay: many where transfers take long.
    fn longest_round(&self) -> f64 {
        let tracks = self.state.model.tracks(self.state.members.iter().copied());
        let (mut transfers, mut iterations) = (0.0, 0.0);
        for track in tracks.iter().filter(|track| !track.iterations.is_empty()) {
            transfers += track.transfer;
            iterations += track.iterations.iter().sum::<f64>() / track.iterations.len() as f64;
        }
        if iterations > 0.0 { LONG_ROUND * (1.0 + 10.0 * transfers / iterations) } else { LONG_ROUND }
    }

    /// A worker has come or gone.
    fn on_members_changed(&mut self) {
        let state = &mut self.state;
        state.interval = INTERVAL;
        state.plan_at = state.plan_at.min(state.seen + SOON * state.members.len() as u64);
    }

    /// Iterations were seen. `changed` says whether the times of their worker have changed.
    fn observe(&mut self, iterations: u64, changed: bool) {
        let state = &mut self.state;
        state.seen += iterations;
        // Before the first plan, nothing is known long enough to change.
        if changed && state.seen >= SOON * state.members.len() as u64 {
            state.interval = INTERVAL;
            state.plan_at = state.seen;
        }
        if state.seen >= state.plan_at && state.change.is_none() {
            state.wants_plan = true;
        }
    }

    /// The scheme in force has handled an event that came at this version. If it has made its last commit, the next one
    /// takes over.
    fn follow(&mut self, turn: &mut Turn<'_>, before: u64) {
        let commits = turn.version().0 - before;
        if commits == 0 || self.state.change.is_none() {
            return;
        }
        let Some(SchemeChange { to, reason }) = self.state.change.take() else { return };
        self.scheme = to.build(&self.setup).expect("candidates fit the run");
        self.state.earlier_commits = commits;
        self.state.present = to;
        let members: Vec<WorkerId> = turn.workers().collect();
        for &worker in &members {
            // What is queued starts when the present task ends.
            for _ in 0..2 {
                if turn.running(worker).is_some() {
                    turn.interrupt(worker, reason);
                }
            }
        }
        members.into_iter().for_each(|worker| self.scheme.on_joined(turn, worker));
        turn.replace_reason(Reason::Joined, reason);
    }

    /// If everybody who still works is overdue, the others wait in vain: their gradients are committed, and nobody waits any
    /// more. Otherwise it looks again when that may be so.
    fn watch(&mut self, turn: &mut Turn<'_>) {
        let state = &mut self.state;
        if state.pending.is_empty() || state.watch_at > turn.now() {
            return;
        }
        let (mut working, mut latest) = (0, Time::START);
        for worker in turn.workers() {
            let Some((task, since)) = turn.running(worker).zip(turn.running_since(worker)) else { continue };
            let Some(overdue) = state.model.overdue(worker, task.samples, since) else { return };
            (working, latest) = (working + 1, latest.max(overdue));
        }
        if working == 0 {
            return;
        }
        if latest > turn.now() {
            state.watch_at = latest;
            turn.wake(latest.since(turn.now()), Reason::RoundDeadline { at: latest });
            return;
        }
        let to: SchemeSpec = FIRST.parse().expect("it is written as schemes are");
        let reason = Reason::overdue(FIRST, working);
        state.change = Some(SchemeChange { to, reason });
        state.plan_at = state.seen + state.interval * state.members.len() as u64;
        let (before, live) = (turn.version().0, turn.live() as u32);
        let quorum = Reason::Quorum { waited_for: state.pending.len() as u32, workers: live };
        turn.commit(CommitRequest::of(&state.pending), quorum);
        self.follow(turn, before);
    }
}

impl Scheme for Auto {
    fn save(&self) -> Option<String> {
        serde_json::to_string(&SavedAuto { auto: &self.state, scheme: self.scheme.save()? }).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        let saved: SavedAuto<AutoState> = serde_json::from_str(state)?;
        self.state = saved.auto;
        self.scheme = self.state.present.build(&self.setup).map_err(RestoreError::new)?;
        self.scheme.restore(&saved.scheme)?;
        if self.state.change.is_some() {
            self.scheme.retire();
        }
        Ok(())
    }

    fn plan_request(&self) -> Option<PlanRequest> {
        self.state.wants_plan.then(|| PlanRequest {
            setup: self.setup,
            candidates: self.candidates(),
            workers: self.state.model.tracks(self.state.members.iter().copied()),
            noise: self.state.noise,
        })
    }

    fn on_planned(&mut self, _turn: &mut Turn<'_>, paces: &[SchemePace]) {
        let candidates = self.candidates();
        let state = &mut self.state;
        state.wants_plan = false;
        let members = state.members.len() as u64;
        state.plan_at = state.seen + state.interval * members.max(1);
        state.interval = (2 * state.interval).min(LONGEST_INTERVAL);
        let own = paces.iter().find(|candidate| candidate.scheme == state.present).map_or(0.0, |own| own.pace);
        // The workers may have changed since it was asked for.
        let valid = paces.iter().filter(|candidate| candidates.contains(&candidate.scheme));
        let Some(best) = valid.max_by(|a, b| a.pace.total_cmp(&b.pace)) else { return };
        let gain = best.pace / own;
        if best.scheme != state.present && best.pace > 0.0 && gain > LEAST_GAIN {
            let reason = Reason::switched(&best.scheme.to_string(), gain);
            state.change = Some(SchemeChange { to: best.scheme.clone(), reason });
            self.scheme.retire();
        }
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.state.members.insert(worker);
        let before = turn.version().0;
        self.scheme.on_joined(turn, worker);
        self.on_members_changed();
        self.follow(turn, before);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.state.members.remove(&worker);
        self.state.model.on_left(worker);
        self.state.pending.retain(|task| task.worker != worker);
        let before = turn.version().0;
        self.scheme.on_left(turn, worker);
        self.on_members_changed();
        self.follow(turn, before);
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        let asked = update.work.length().is_some_and(crate::LocalLength::asks);
        let (updates, iterations) = &mut self.state.updates;
        (*updates, *iterations) = (*updates + 1, *iterations + u64::from(update.iterations));
        let changed = self.state.model.on_reported(turn.now(), update);
        if update.work == Work::Gradient && update.version == turn.version() {
            self.state.pending.push(update.task);
        }
        let before = turn.version().0;
        self.scheme.on_reported(turn, update);
        self.observe(if asked { 0 } else { u64::from(update.iterations) }, changed);
        self.follow(turn, before);
        if turn.version().0 == before {
            self.watch(turn);
        }
    }

    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        let worker = question.task.worker;
        let mut changed = false;
        if let Some((task, since)) = turn.running(worker).zip(turn.running_since(worker)) {
            changed = self.state.model.on_asked(turn.now(), question, task.samples, since);
        }
        let before = turn.version().0;
        self.scheme.on_asked(turn, question);
        self.observe(1, changed);
        self.follow(turn, before);
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        self.state.pending.clear();
        let (updates, iterations) = std::mem::take(&mut self.state.updates);
        if let (Some(aggregate), true) = (aggregate, updates > 0) {
            self.state.noise.observe_replicas(aggregate, iterations as f64 / updates as f64);
        }
        if self.state.earlier_commits > 0 {
            self.state.earlier_commits -= 1;
            return;
        }
        let before = turn.version().0;
        self.scheme.on_committed(turn, aggregate);
        self.follow(turn, before);
    }

    fn on_late(&mut self, turn: &mut Turn<'_>, task: TaskId) {
        self.scheme.on_late(turn, task);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        let before = turn.version().0;
        self.scheme.on_timer(turn);
        self.follow(turn, before);
        if turn.version().0 == before {
            self.watch(turn);
        }
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "auto",
    "run the scheme that would be fastest on the cluster as it is, and change it when that changes",
    [200, 26, 0],
    build,
)
.stepping_by(StepKind::Averaged)
.settings(&[Setting::choice("stale", "whether gradients of earlier versions may be used", &["no", "yes"])
    .default(SettingDefault::Text("no"))])
.variants(&["stale=yes"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let present: SchemeSpec = FIRST.parse()?;
    let scheme = present.build(setup)?;
    let state = AutoState {
        present,
        change: None,
        members: BTreeSet::new(),
        model: ClusterModel::new(setup.batch),
        noise: GradientNoise::default(),
        seen: 0,
        plan_at: SOON * setup.workers as u64,
        interval: INTERVAL,
        wants_plan: false,
        updates: (0, 0),
        pending: Vec::new(),
        watch_at: Time::START,
        earlier_commits: 0,
    };
    Ok(Box::new(Auto { setup: *setup, stale: settings.choice("stale", [false, true])?, state, scheme }))
}
