//! A scheme of one's own beside all others: `asp` whose steps are the smaller, the staler the update.
//!
//! Simulated: `cargo run --release --example own_scheme -- race --schemes bsp,asp,stale-asp`
//! Real: `cargo run --release --example own_scheme -- train --scheme stale-asp:slope=0.5 --emulate 0=3`

use paceline::core::{
    CommitRequest, Reason, Scheme, SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, Turn, Update,
    WorkerId, add_scheme,
};
use std::process::ExitCode;

static STALE_ASP: SchemeEntry = SchemeEntry::new(
    "stale-asp",
    "apply every update on arrival, with a smaller rate the staler it is",
    [213, 94, 0],
    StaleAsp::build,
)
.settings(&[Setting::number("slope", "how fast the rate falls with the staleness", 0.0, 100.0)
    .default(SettingDefault::Number(0.2))]);

struct StaleAsp {
    slope: f64,
    batch: u32,
}

impl StaleAsp {
    fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
        Ok(Box::new(StaleAsp { slope: settings.number("slope")?, batch: setup.batch }))
    }
}

impl Scheme for StaleAsp {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        turn.assign(worker, self.batch, Reason::Joined);
    }

    fn on_left(&mut self, _turn: &mut Turn<'_>, _worker: WorkerId) {}

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        let staleness = (turn.version().0 - update.version.0) as f64;
        let factor = 1.0 / (1.0 + self.slope * staleness);
        let commit = CommitRequest::of(&[update.task]).rate_factor(factor as f32);
        turn.commit(commit, Reason::own_value("rate by staleness", staleness));
        turn.assign(update.task.worker, self.batch, Reason::NewVersion);
    }
}

fn main() -> ExitCode {
    add_scheme(&STALE_ASP).expect("no other scheme has this name");
    paceline::main()
}
