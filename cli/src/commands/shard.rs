//! `paceline shard`: hold a part of the parameters for a server.

use clap::Args;
use paceline_config::Failure;
use paceline_runtime::RunEnding;
use serde_json::json;

use crate::interrupt;
use crate::launcher::LauncherEnvironment;
use crate::options::{JoinOptions, failure};
use crate::output::say;

/// Hold a part of the parameters for a server until its run ends, without a worker
#[derive(Args)]
#[command(
    after_help = "The server is started with --shards apart:N, for N shards. Its workers may come and go; the shards \
stay. One shard more waits for its turn as long as --join-timeout says.

Examples:
  paceline serve --listen 0.0.0.0 --keys keys --workers 8 --shards apart:2
  paceline shard --join 10.0.0.1 --keys keys        (twice, on machines that stay)"
)]
pub struct ShardArgs {
    #[command(flatten)]
    join: JoinOptions,
}

impl ShardArgs {
    pub fn run(self) -> Result<(), Failure> {
        interrupt::listen(|| std::process::exit(RunEnding::Interrupted.exit_code().into()))?;
        let environment = LauncherEnvironment::read(|name| std::env::var(name).ok());
        let servers = self.join.servers(&environment).map_err(Failure::Input)?;
        let address = servers.first().clone();
        let process = self.join.process(servers)?;
        let reason = process.hold(&mut |notice| self.join.show(&address, notice)).map_err(failure)?;
        if self.join.json {
            say(json!({ "reason": reason }));
        } else if !self.join.quiet {
            say(format_args!("the run has ended: {reason}"));
        }
        Ok(())
    }
}
