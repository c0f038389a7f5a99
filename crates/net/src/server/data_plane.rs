//! Where updates are summed, and for which runs.

use std::fmt;
use std::str::FromStr;

use paceline_core::{SchemeSpec, Setup};
use paceline_protocol::PayloadRule;

use super::{ServerError, ShardCount, TransportOptions};

/// Where updates are summed, and the model is stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataPlane {
    /// In the server, or its shards.
    #[default]
    Server,
    /// In every worker: a collective operation of their processes sums the updates, and all step alike.
    Collective,
}

impl FromStr for DataPlane {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "server" => Ok(DataPlane::Server),
            "collective" => Ok(DataPlane::Collective),
            _ => Err(format!("'{text}': expected server or collective")),
        }
    }
}

impl fmt::Display for DataPlane {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            DataPlane::Server => "server",
            DataPlane::Collective => "collective",
        })
    }
}

impl TransportOptions {
    /// Checks that the updates of a run can be summed where these options say. `is_script` says whether its workers bring
    /// the model.
    ///
    /// # Errors
    /// If they can't, or the scheme can't be built.
    pub fn check(&self, scheme: &SchemeSpec, setup: &Setup, is_script: bool) -> Result<(), ServerError> {
        if self.data_plane == DataPlane::Server {
            return Ok(());
        }
        let sums_all = || Ok::<_, ServerError>(scheme.build(setup)?.commits_all());
        let reason = if !is_script {
            "the model is the server's own".into()
        } else if !sums_all()? || scheme.outer_optimizer(setup.workers).is_some() {
            format!("{scheme} does not step by one update of every worker")
        } else if self.shards != ShardCount::None {
            "the parameters can't be in --shards at the same time".into()
        } else if self.payload != PayloadRule::default() {
            "values are summed as they are, without --payload".into()
        } else {
            return Ok(());
        };
        Err(ServerError::NotCollective { reason })
    }
}
