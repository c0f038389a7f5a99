//! What has started this process, and which Python there is.

use std::process::Command;

use super::Finding;
use super::machine::output_of;
use crate::launcher::LauncherEnvironment;

/// What started this process, and what a run would do here.
pub fn launch(variable: &dyn Fn(&str) -> Option<String>) -> (Finding, Vec<String>) {
    let name = "started by";
    if let Some(server) = variable("PACELINE_SERVER") {
        let rank = variable("PACELINE_RANK").map_or_else(|| "no rank".into(), |rank| format!("rank {rank}"));
        let found = format!("paceline ({rank}, server at {server})");
        return (Finding::fine(name, found), vec![format!("paceline.join() joins the server at {server}.")]);
    }
    let environment = LauncherEnvironment::read(variable);
    let needs_address = "paceline work needs --join ADDRESS.";
    let work = match environment.address() {
        // Its own store is at that port.
        Ok(_) if environment.launcher() == Some("torchrun") => needs_address.into(),
        Ok(Some(address)) => format!("paceline work joins a server at {address}, unless --join names another."),
        Ok(None) => needs_address.into(),
        Err(error) => {
            return (Finding::wrong(name, error.to_string(), "correct MASTER_ADDR and MASTER_PORT"), Vec::new());
        }
    };
    let Some(launcher) = environment.launcher() else {
        let alone = "A script with paceline.join() trains alone: start it by paceline train -- python script.py.";
        return (Finding::fine(name, "no launcher"), vec![alone.into(), work]);
    };
    let (rank, workers) = match (environment.rank(), environment.workers()) {
        (Ok(Some(rank)), Ok(Some(workers))) if rank < workers => (rank, workers),
        (Err(error), _) | (_, Err(error)) => {
            let advice = "start this process by the launcher, or unset its variables";
            return (Finding::wrong(name, format!("{launcher}: {error}"), advice), Vec::new());
        }
        (Ok(rank), Ok(workers)) => {
            let shown = |number: Option<u32>| number.map_or_else(|| "none".into(), |number| number.to_string());
            let found = format!("{launcher}: rank {}, size {}", shown(rank), shown(workers));
            return (
                Finding::wrong(name, found, "expected a rank below the size: unset the variables of the launcher"),
                Vec::new(),
            );
        }
    };
    let join = match (workers, rank, variable("PACELINE_OPTIONS")) {
        (1, _, None) => "A script with paceline.join() trains alone, as PACELINE_OPTIONS is not set.".into(),
        (_, 0, options) => {
            let options = options.map_or_else(|| "no options".into(), |options| format!("the options {options}"));
            format!(
                "paceline.join() starts a server for {workers} workers, with {options}, and tells the other processes."
            )
        }
        _ => "paceline.join() asks rank 0 where its server is.".into(),
    };
    (Finding::fine(name, format!("{launcher} (rank {rank} of {workers})")), vec![join, work])
}

/// Says which packages a Python has, without loading them.
const PACKAGES: &str = "import sys, importlib.metadata as m
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(sys.version.split()[0], version('torch'), version('paceline'))";

/// The first Python that would run a script.
pub fn python() -> Finding {
    let name = "python";
    let mut command = Command::new("python3");
    command.args(["-P", "-c", PACKAGES]);
    let Some(output) = output_of(command) else {
        return Finding::note(
            name,
            "none of at least 3.11 on the path",
            "scripts need Python, PyTorch and the package paceline",
        );
    };
    let mut words = output.split_whitespace();
    let mut next = || words.next().unwrap_or("None").to_string();
    let (version, torch, package) = (next(), next(), next());
    let found =
        |what: &str, version: &str| if version == "None" { format!("no {what}") } else { format!("{what} {version}") };
    let text = format!("{version}, {}, {}", found("torch", &torch), found("paceline", &package));
    match (torch.as_str(), package.as_str()) {
        ("None", _) | (_, "None") => Finding::note(name, text, "scripts need both: pip install 'paceline[torch]'"),
        _ => Finding::fine(name, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    fn found(variables: &[(&str, &str)]) -> (String, Verdict, String) {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let (finding, would) = launch(&find);
        (finding.found, finding.verdict, would.join(" "))
    }

    #[test]
    fn a_launch_says_what_would_happen() {
        let (text, verdict, would) = found(&[]);
        assert_eq!((text.as_str(), verdict), ("no launcher", Verdict::Fine));
        assert!(would.contains("paceline train -- python script.py"), "{would}");
        let torchrun = [
            ("TORCHELASTIC_RUN_ID", "7"),
            ("RANK", "0"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "9"),
        ];
        let (text, verdict, would) = found(&torchrun);
        assert_eq!((text.as_str(), verdict), ("torchrun (rank 0 of 4)", Verdict::Fine));
        assert!(would.contains("starts a server for 4 workers, with no options"), "{would}");
        let slurm = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")];
        let (text, _, would) = found(&slurm);
        assert_eq!(text, "srun (rank 3 of 4)");
        assert!(would.contains("asks rank 0"), "{would}");
        let (text, verdict, _) = found(&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        assert_eq!(verdict, Verdict::Wrong);
        assert!(text.contains("the environment's rank is 'x'"), "{text}");
        let (text, verdict, _) = found(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]);
        assert_eq!((text.as_str(), verdict), ("mpirun: rank 4, size 4", Verdict::Wrong));
        let (text, ..) = found(&[("PACELINE_SERVER", "local:x"), ("PACELINE_RANK", "1")]);
        assert_eq!(text, "paceline (rank 1, server at local:x)");
    }
}
