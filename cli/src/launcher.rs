//! What launchers such as torchrun, Slurm and MPI tell a process.

use anyhow::anyhow;
use paceline_net::{Address, DEFAULT_PORT};

/// Variables that only one launcher sets, each with that.
const LAUNCHERS: [(&str, &str); 5] = [
    ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "mpirun"),
    ("SLURM_STEP_ID", "srun"),
    ("PMI_RANK", "mpirun"),
    ("WORLD_SIZE", "a launcher"),
];

/// The server's address, this process's rank and the number of workers, as a launcher sets them in the environment.
#[derive(Debug, Default, PartialEq)]
pub struct LauncherEnvironment {
    host: Option<String>,
    port: Option<String>,
    rank: Option<String>,
    workers: Option<String>,
    launcher: Option<&'static str>,
}

impl LauncherEnvironment {
    /// Reads the environment, in which `variable` looks one up. If several launchers have set variables, the innermost one counts.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        LauncherEnvironment {
            host: first(&["MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR"]),
            port: variable("MASTER_PORT"),
            rank: first(&["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]),
            workers: first(&["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"]),
            launcher: LAUNCHERS.iter().find(|(name, _)| variable(name).is_some()).map(|(_, launcher)| *launcher),
        }
    }

    /// What the launcher is called, if this process was started by one.
    pub fn launcher(&self) -> Option<&'static str> {
        self.launcher
    }

    /// Where the server is.
    pub fn address(&self) -> anyhow::Result<Option<Address>> {
        let Some(host) = &self.host else { return Ok(None) };
        let port = self.port.clone().unwrap_or_else(|| DEFAULT_PORT.to_string());
        Ok(Some(format!("{host}:{port}").parse()?))
    }

    /// The rank of this process.
    pub fn rank(&self) -> anyhow::Result<Option<u32>> {
        whole("rank", self.rank.as_deref())
    }

    /// The number of workers.
    pub fn workers(&self) -> anyhow::Result<Option<u32>> {
        whole("number of workers", self.workers.as_deref())
    }
}

/// A whole number in the environment.
fn whole(name: &str, text: Option<&str>) -> anyhow::Result<Option<u32>> {
    let parse =
        |text: &str| text.parse().map_err(|_| anyhow!("the environment's {name} is '{text}'; expected a whole number"));
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Option<String>, Option<u32>) {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let environment = LauncherEnvironment::read(find);
        (environment.address().unwrap().map(|address| address.to_string()), environment.rank().unwrap())
    }

    #[test]
    fn launchers_set_the_address_and_the_rank() {
        let torchrun = [("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500"), ("RANK", "3")];
        assert_eq!(read(&torchrun), (Some("node-0:29500".into()), Some(3)));
        let slurm = [("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"), ("SLURM_PROCID", "5")];
        assert_eq!(read(&slurm), (Some("10.0.0.1:7077".into()), Some(5)));
        assert_eq!(read(&[("OMPI_COMM_WORLD_RANK", "1")]), (None, Some(1)));
        assert_eq!(read(&[("PMI_RANK", "2")]), (None, Some(2)));
        // Slurm has started one mpirun on every host, and numbers these.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("OMPI_COMM_WORLD_RANK", "3")]), (None, Some(3)));
        assert_eq!(read(&[]), (None, None));
        assert!(LauncherEnvironment { rank: Some("x".into()), ..LauncherEnvironment::default() }.rank().is_err());
    }
}
